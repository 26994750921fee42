//! The model families. Each file describes one family for both kinds of files, as data and a function; the table below
//! registers it.
//!
//! To add a family: one file with a [`Family`], one line in [`FAMILIES`]. docs/adding-a-model.md walks through one.

use coldpress_formats::{FileFormat, ModelFile};

use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::nested::Nested;
use crate::roles::{Role, TensorRole};
use crate::spec::{LayerSpec, ModelSpec, RopeSpec};

mod bailing_hybrid;
mod blocks;
mod deepseek2;
mod deepseek4;
mod delta_rule;
mod ernie4_5_moe;
mod gemma3;
mod glm4_moe;
mod gpt_oss;
mod granitehybrid;
mod granitemoe;
mod hunyuan_moe;
mod hy_v3;
mod kimi_linear;
mod kv_types;
mod latent;
mod layer_kinds;
mod lfm2_moe;
mod llama;
mod llama4;
mod longcat_flash;
mod mimo_v2_flash;
mod minimax;
mod minimax_m2;
mod near;
mod olmoe;
mod phimoe;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3_next;
mod qwen3moe;
mod qwen4_exp;
mod rope;
mod sigmoid_router;
mod yarn;

pub use kv_types::{allowed_kv_types, check_kv_type};

/// One family of models.
struct Family {
    /// Name in `general.architecture` of GGUF files, and the family's name here.
    gguf: &'static str,
    /// Its Hugging Face checkpoints.
    hugging_face: &'static [HuggingFace],
    /// Asks for every number and tensor of the family by canonical name.
    describe: fn(&mut SpecBuilder<'_>) -> Result<Outline, ModelError>,
}

/// Every family that is computed.
const FAMILIES: &[Family] = &[
    bailing_hybrid::FAMILY,
    deepseek2::FAMILY,
    deepseek2::WITH_INDEXER,
    deepseek2::GLM_WITH_INDEXER,
    deepseek4::FAMILY,
    ernie4_5_moe::FAMILY,
    gemma3::FAMILY,
    glm4_moe::FAMILY,
    gpt_oss::FAMILY,
    granitehybrid::FAMILY,
    granitemoe::FAMILY,
    hunyuan_moe::FAMILY,
    hy_v3::FAMILY,
    kimi_linear::FAMILY,
    lfm2_moe::FAMILY,
    llama::FAMILY,
    llama4::FAMILY,
    longcat_flash::FAMILY,
    mimo_v2_flash::FAMILY,
    minimax::FAMILY,
    minimax_m2::FAMILY,
    olmoe::FAMILY,
    phimoe::FAMILY,
    qwen2::FAMILY,
    qwen2moe::FAMILY,
    qwen3::FAMILY,
    qwen3_next::FAMILY,
    qwen3_next::QWEN3_5,
    qwen3moe::FAMILY,
    qwen3moe::WITH_PICTURES,
    qwen4_exp::FAMILY,
];

/// What a family returns: a spec whose tensor lists are still in the builder.
struct Outline {
    frame: blocks::Frame,
    ropes: Vec<RopeSpec>,
    layers: Vec<LayerSpec>,
}

/// Names of the registered architectures in GGUF files.
pub fn family_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.gguf)
}

/// Values of `model_type` in config.json that are known.
pub fn hugging_face_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.hugging_face.iter().map(|table| table.model_type))
}

/// Describes the model in `file`; reads metadata and the tensor directory only.
///
/// # Errors
/// Unknown architecture, metadata that is absent or contradicts the tensors, features that are not computed, tensors without
/// a place.
pub fn describe(file: &ModelFile) -> Result<ModelSpec, ModelError> {
    let (family, mut builder) = start(file)?;
    let outline = outline(family, &mut builder)?;
    complete(file, family, builder, outline)
}

/// As [`describe`], with what each tensor is for, in the order of the file; where the model is refused, as far as it was understood.
pub fn describe_with_roles(file: &ModelFile) -> (Result<ModelSpec, ModelError>, Vec<TensorRole>) {
    match start(file) {
        Err(error) => {
            let role = |name: &str| TensorRole { role: Role::of_any(name), has_place: true };
            (Err(error), file.tensors().map(|tensor| role(&tensor.name)).collect())
        }
        Ok((family, mut builder)) => {
            builder.note_roles();
            let outline = outline(family, &mut builder);
            let mut roles = builder.roles();
            if outline.is_err() {
                // What the family would have asked for further is not known.
                roles.iter_mut().for_each(|role| role.has_place = true);
            }
            (outline.and_then(|outline| complete(file, family, builder, outline)), roles)
        }
    }
}

/// The family of a file, and a builder that has asked for nothing.
fn start(file: &ModelFile) -> Result<(&'static Family, SpecBuilder<'_>), ModelError> {
    Ok(match file.format() {
        FileFormat::Gguf => {
            let architecture = file.metadata().string("general.architecture")?;
            let family = FAMILIES.iter().find(|family| family.gguf == architecture);
            let family = family.ok_or_else(|| unknown(file, architecture, family_names()))?;
            (family, SpecBuilder::gguf(file, architecture))
        }
        FileFormat::HuggingFace => {
            let model_type = file.metadata().string("model_type")?;
            let inner = Nested::model_type(file.metadata());
            match (hugging_face(model_type), inner.and_then(hugging_face)) {
                (Some((family, table)), _) => (family, SpecBuilder::hugging_face(file, table)),
                (None, Some((family, table))) => (family, SpecBuilder::nested(file, table)),
                (None, None) => {
                    let found =
                        inner.map_or_else(|| model_type.to_owned(), |inner| format!("{model_type}, {inner}"));
                    return Err(unknown(file, &found, hugging_face_model_types()));
                }
            }
        }
    })
}

/// What a family makes of a file whose codes can be read.
fn outline(family: &Family, builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    builder.check_codes()?;
    (family.describe)(builder)
}

/// The spec of what a family has asked for.
fn complete(
    file: &ModelFile,
    family: &Family,
    mut builder: SpecBuilder<'_>,
    outline: Outline,
) -> Result<ModelSpec, ModelError> {
    let Outline { frame, ropes, layers } = outline;
    let row_tables = builder.take_row_tables();
    let notes = builder.notes();
    let (tensors, experts) = builder.finish(family.gguf, frame.trained_context)?;
    Ok(ModelSpec {
        family: family.gguf,
        name: name_of(file)?,
        vocabulary: frame.vocabulary,
        hidden: frame.hidden,
        trained_context: frame.trained_context,
        context_limit: frame.context_limit,
        norm_epsilon: frame.norm_epsilon,
        embedding: frame.embedding,
        embedding_scale: frame.embedding_scale,
        residual_scale: frame.residual_scale,
        normed_stream: frame.normed_stream,
        streams: frame.streams,
        ple: frame.ple,
        output_norm: frame.output_norm,
        output: frame.output,
        output_bias: frame.output_bias,
        logit_scale: frame.logit_scale,
        ropes,
        layers,
        tensors,
        experts,
        row_tables,
        notes,
    })
}

/// The family of a `model_type`.
fn hugging_face(model_type: &str) -> Option<(&'static Family, &'static HuggingFace)> {
    let tables =
        FAMILIES.iter().flat_map(|family| family.hugging_face.iter().map(move |table| (family, table)));
    tables.into_iter().find(|(_, table)| table.model_type == model_type)
}

fn unknown<'a>(file: &ModelFile, found: &str, supported: impl Iterator<Item = &'a str>) -> ModelError {
    let supported: Vec<&str> = supported.collect();
    let near = near::near(found, supported.iter().copied()).join(", ");
    ModelError::UnknownArchitecture {
        file: file.metadata().path().display().to_string(),
        found: found.to_owned(),
        near: if near.is_empty() { String::new() } else { format!("nearest is {near}; ") },
        supported: supported.join(", "),
    }
}

fn name_of(file: &ModelFile) -> Result<Option<String>, ModelError> {
    Ok(match file.format() {
        FileFormat::Gguf => file.metadata().opt_string("general.name")?.map(str::to_owned),
        FileFormat::HuggingFace => {
            let folder = file.metadata().path().parent().and_then(|folder| folder.file_name());
            folder.map(|name| name.to_string_lossy().into_owned())
        }
    })
}
