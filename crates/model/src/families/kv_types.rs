//! Which lossy types of the KV cache may be used with which family.
//!
//! How much a model loses with few bits depends on what its keys look like (biases, head norms), so a type is allowed for a family when
//! `coldpress eval` has measured it on a model of that family; the figures are in `docs/kv.md`. To add one: measure, write the row
//! there, add the type here. Exact types need no entry.

use crate::error::ModelError;
use crate::kv::KvType;
use crate::spec::{AttentionKind, ModelSpec};

/// Lossy types that were measured, by family.
const MEASURED: &[(&str, &[KvType])] =
    &[("llama", &[KvType::Q8, KvType::Q4]), ("qwen3moe", &[KvType::Q8, KvType::Q4])];

/// Types that a model of `family` may use without further ado.
pub fn allowed_kv_types(family: &str) -> impl Iterator<Item = KvType> {
    let measured = MEASURED.iter().find(|&&(name, _)| name == family).map_or(&[][..], |&(_, types)| types);
    let all = KvType::ALL.into_iter().map(|(_, kv_type)| kv_type);
    all.filter(move |kv_type| !kv_type.is_lossy() || measured.contains(kv_type))
}

/// Whether a model can store its keys and values as `kv_type`, and may: a lossy type must have been measured for its family, unless it
/// is about to be (`measuring`).
///
/// # Errors
/// [`ModelError::KvType`] with the types that are allowed.
pub fn check_kv_type(spec: &ModelSpec, kv_type: KvType, measuring: bool) -> Result<(), ModelError> {
    let together = kv_type.head_multiple();
    let shapes = || spec.layers.iter().filter_map(|layer| layer.attention.shape());
    let heads = || shapes().map(|shape| shape.head_dim);
    let compresses = spec.layers.iter().any(|layer| matches!(layer.attention, AttentionKind::Compressed(_)));
    let fits = |kv_type: KvType| {
        let mut heads = heads();
        heads.all(|head_dim| head_dim.is_multiple_of(kv_type.head_multiple()))
    };
    let allowed = allowed_kv_types(spec.family);
    let reason = if kv_type.is_lossy() && compresses {
        format!("layers that compress groups of positions read them as floats, not as {}", kv_type.name())
    } else if !fits(kv_type) {
        let odd = heads().filter(|head_dim| !head_dim.is_multiple_of(together)).max().unwrap_or(0);
        format!("heads of this model have {odd} elements, and {} stores blocks of {together}", kv_type.name())
    } else if !measuring && allowed_kv_types(spec.family).all(|allowed| allowed != kv_type) {
        format!(
            "what {} costs was not measured for the family {}; `coldpress eval` measures it for a model",
            kv_type.name(),
            spec.family
        )
    } else {
        return Ok(());
    };
    let allowed: Vec<&str> = allowed.filter(|&kv_type| fits(kv_type)).map(KvType::name).collect();
    Err(ModelError::KvType { kv_type: kv_type.name(), reason, allowed: allowed.join(", ") })
}
