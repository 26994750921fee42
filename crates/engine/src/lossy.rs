//! What makes answers differ from those of exact settings, and how it is said.
//!
//! Owns: the words for it (`experts q4_k`, `kv q4`, `4 of 8 experts per token`, `cache bias 0.1`), which plans, runs, servers and snapshots share, and the
//! routing that was asked for. Everything here is off unless somebody asks. What a setting costs is measured in `eval.rs`;
//! how tokens are routed then is in `coldpress_model` (`lossy_routing.rs`).

use coldpress_model::{Model, ModelSpec};

use crate::configuration::LoadConfiguration;
use crate::error::EngineError;
use crate::expert_types;
use crate::settings::SettingKey;

/// Routing that reads fewer experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossyRouting {
    /// Most experts that a token uses in a layer.
    pub experts_per_token: Option<usize>,
    /// Preference for experts in memory, as a share of the spread of scores.
    pub cache_bias: f32,
}

impl LossyRouting {
    /// What the model says.
    pub const EXACT: Self = Self { experts_per_token: None, cache_bias: 0.0 };

    /// Routes the tokens of `model` this way from now on.
    pub fn set(self, model: &mut Model) {
        model.limit_experts_per_token(self.experts_per_token);
        model.set_cache_bias(self.cache_bias);
    }
}

impl LoadConfiguration {
    /// The routing that was asked for.
    pub(crate) fn routing(&self) -> LossyRouting {
        let experts_per_token = self.experts_per_token.map(|experts| experts as usize);
        LossyRouting { experts_per_token, cache_bias: self.cache_bias }
    }

    /// What makes answers differ from those of exact settings for a model that is described by `spec`, before the routing is applied, in words; empty
    /// if nothing does.
    pub(crate) fn lossy(&self, spec: &ModelSpec) -> Vec<String> {
        let trained = spec.experts_per_token();
        let kv = self.kv_type.is_lossy().then(|| format!("kv {}", self.kv_type.name()));
        let fewer = self.experts_per_token.filter(|&experts| (experts as usize) < trained);
        let fewer = fewer.map(|experts| format!("{experts} of {trained} experts per token"));
        let bias = (self.cache_bias > 0.0).then(|| format!("cache bias {}", self.cache_bias));
        [expert_types::in_words(spec), kv, fewer, bias].into_iter().flatten().collect()
    }

    /// Checks the routing that was asked for, and makes the model use as many experts as it says. Where two ways are compared, the
    /// model keeps its own number: one of them is exact.
    ///
    /// # Errors
    /// The model has no experts, uses fewer, or its router cannot prefer any.
    pub(crate) fn apply_routing(&self, spec: &mut ModelSpec) -> Result<(), EngineError> {
        let refuse = |key, text| Err(self.blame(key, EngineError::BadOption(text)));
        let trained = spec.experts_per_token();
        if let Some(experts) = self.experts_per_token {
            if trained == 0 {
                let text =
                    format!("{experts} experts per token were asked for; this model has no routed experts");
                return refuse(SettingKey::ExpertsPerToken, text);
            }
            if experts as usize > trained {
                return refuse(
                    SettingKey::ExpertsPerToken,
                    format!(
                        "{experts} experts per token were asked for; this model was trained with {trained}: give 1 to {trained}"
                    ),
                );
            }
            if self.exact_kv.is_none() {
                spec.limit_experts_per_token(experts as usize);
            }
        }
        if self.cache_bias > 0.0 {
            if trained == 0 {
                let text = "a cache bias was asked for; this model has no routed experts".to_owned();
                return refuse(SettingKey::CacheBias, text);
            }
            let mut limited = spec.clone();
            limited
                .limit_experts_per_token(self.experts_per_token.map_or(usize::MAX, |limit| limit as usize));
            if let Err(reason) = limited.check_cache_bias() {
                return refuse(SettingKey::CacheBias, format!("a cache bias has no use here: {reason}"));
            }
        }
        Ok(())
    }
}
