//! Text models inside larger ones: a configuration whose `text_config` describes a family that is computed, beside parts for
//! pictures and sound.
//!
//! The text model is read as if its configuration stood alone. Of the outer configuration everything that concerns other parts is
//! passed over, and so are their tensors, which cost no memory; what is neither known to belong to them nor without effect is
//! refused as anywhere. Next: `names.rs`.

use coldpress_formats::{Metadata, ModelFile};

/// Where the configuration of the text model stands.
const CONFIG: &str = "text_config.";

/// Keys of the outer configuration that count where the inner one is silent.
const SHARED: &[&str] = &["tie_word_embeddings"];

/// What keys of the outer configuration begin with that concern other parts or mark their places in a text.
const OTHER_KEYS: &[&str] = &[
    "audio_",
    "boa_token_",
    "boi_token_",
    "eoa_token_",
    "eoi_token_",
    "ignore_index",
    "image_",
    "img_",
    "media_",
    "mm_",
    "multimodal_",
    "projection_",
    "projector_",
    "spatial_merge_size",
    "use_unified_vision_chunk",
    "video_",
    "vision_",
    "vit_",
];

/// What the names of tensors of other parts begin with.
const OTHER_TENSORS: &[&str] = &[
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "mm_projector.",
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
    "model.mm_projector.",
    "model.multi_modal_projector.",
    "model.vision_model.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
    "vision_model.",
    "vision_tower.",
    "visual.",
];

/// What names of tensors of the text model begin with, in place of what they begin with alone. The first pair that fits counts.
const PREFIXES: &[(&str, &str)] =
    &[("", "language_model."), ("model.", "model.language_model."), ("model.", "language_model.")];

/// The embedding, which every text model has.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// A text model inside a larger one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nested {
    /// Beginnings of names of tensors: alone, and here.
    prefix: (&'static str, &'static str),
}

impl Nested {
    /// `model_type` of the text model in a configuration that has one.
    pub fn model_type(metadata: &Metadata) -> Option<&str> {
        metadata.opt_string(&format!("{CONFIG}model_type")).ok().flatten()
    }

    /// How the tensors of the text model in a file are named.
    pub fn of(file: &ModelFile) -> Self {
        let mut prefixes = PREFIXES.iter().copied();
        let fits = |&prefix: &(&'static str, &'static str)| {
            file.tensor(&Self { prefix }.tensor(EMBEDDING.to_owned())).is_some()
        };
        Self { prefix: prefixes.find(fits).unwrap_or(("", "")) }
    }

    /// The key of the file for a key of the text model's configuration.
    pub fn key(&self, metadata: &Metadata, key: &str) -> String {
        let inner = format!("{CONFIG}{key}");
        if SHARED.contains(&key) && metadata.get(&inner).is_none() { key.to_owned() } else { inner }
    }

    /// Whether the outer configuration says one thing about a key and the inner one another.
    pub fn contradicts_itself(metadata: &Metadata, key: &str) -> bool {
        let (inner, outer) = (metadata.get(&format!("{CONFIG}{key}")), metadata.get(key));
        inner.is_some() && outer.is_some() && inner != outer
    }

    /// The tensor of the file for a tensor of a text model that stands alone.
    pub fn tensor(&self, name: String) -> String {
        let (alone, here) = self.prefix;
        match name.strip_prefix(alone) {
            Some(rest) => format!("{here}{rest}"),
            // The head stands beside the rest.
            None => name,
        }
    }

    /// A key of the file as one of the text model's configuration; `None` for keys of other parts.
    pub fn inner_key<'a>(&self, key: &'a str) -> Option<&'a str> {
        match key.strip_prefix(CONFIG) {
            Some(inner) => Some(inner),
            None if OTHER_KEYS.iter().any(|other| key.starts_with(other)) => None,
            None => Some(key),
        }
    }

    /// Whether a tensor of the file belongs to another part.
    pub fn is_other_tensor(name: &str) -> bool {
        OTHER_TENSORS.iter().any(|other| name.starts_with(other))
    }
}
