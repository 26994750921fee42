//! Experts in another type than that of the model file: which matrices get it, and how that is said.
//!
//! Owns the types that can be asked for, the choice for each matrix (what is no larger already stays as it is; what does not divide into
//! blocks gets the type that llama.cpp takes then), and the words for it. Quantised experts make answers differ, so they are named among
//! the lossy settings. The work itself is in `coldpress_experts` (`requantize.rs`), packs in `packs.rs`.

use std::collections::BTreeMap;

use coldpress_experts::{LayerExperts, PackFile, Projection};
use coldpress_kernels::WeightFormat;
use coldpress_kernels::layout::packed_bytes;
use coldpress_model::ModelSpec;

use crate::configuration::{LoadConfiguration, PackUse};
use crate::error::EngineError;
use crate::settings::SettingKey;

/// What the routed experts of a model are to be held as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertType {
    /// As they are in the model file, bit for bit.
    #[default]
    Keep,
    /// Q4_K: 4.5 bits a weight.
    #[serde(rename = "q4_k")]
    Q4K,
    /// Q4_0: 4.5 bits a weight, for rows that are no multiple of 256.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// Q8_0: 8.5 bits a weight.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// MXFP4: 4.25 bits a weight.
    Mxfp4,
}

impl ExpertType {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("q4_k", Self::Q4K),
        ("q4_0", Self::Q4_0),
        ("q8_0", Self::Q8_0),
        ("mxfp4", Self::Mxfp4),
        ("keep", Self::Keep),
    ];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(_, value)| value == self).map_or("keep", |&(name, _)| name)
    }

    fn format(self) -> Option<WeightFormat> {
        match self {
            Self::Keep => None,
            Self::Q4K => Some(WeightFormat::Q4K),
            Self::Q4_0 => Some(WeightFormat::Q4_0),
            Self::Q8_0 => Some(WeightFormat::Q8_0),
            Self::Mxfp4 => Some(WeightFormat::Mxfp4),
        }
    }
}

/// What a matrix becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// What was asked for.
    Asked,
    /// Its columns do not divide into the blocks of what was asked for.
    Instead(WeightFormat),
    /// It is no larger already.
    Small,
    /// No type has blocks for its columns.
    Odd,
}

fn becomes(matrix: &Projection, asked: WeightFormat) -> Becomes {
    let Projection { format, rows, columns, .. } = *matrix;
    let smaller =
        |other: WeightFormat| packed_bytes(other, rows, columns) < packed_bytes(format, rows, columns);
    // As llama.cpp does.
    let instead = if asked == WeightFormat::Q4K { WeightFormat::Q5_0 } else { asked };
    match (asked.accepts_columns(columns), instead.accepts_columns(columns)) {
        (true, _) if smaller(asked) => Becomes::Asked,
        (false, true) if smaller(instead) => Becomes::Instead(instead),
        (false, false) => Becomes::Odd,
        _ => Becomes::Small,
    }
}

/// Makes the routed experts of `spec` ones of `asked`. Returns what was not done as asked, a line each.
pub(crate) fn quantise_experts(spec: &mut ModelSpec, asked: ExpertType) -> Vec<String> {
    let Some(format) = asked.format() else { return Vec::new() };
    let mut exceptions: BTreeMap<String, usize> = BTreeMap::new();
    for experts in &mut spec.experts {
        let mut formats = experts.record_formats();
        for ((matrix, name), target) in
            experts.projections().into_iter().zip(["gate", "up", "down"]).zip(&mut formats)
        {
            let Projection { format: stored, rows, columns, .. } = *matrix;
            let blocks = format.block_elements();
            let shape = format!("{name} matrices ({rows}x{columns} {stored})");
            let exception = match becomes(matrix, format) {
                Becomes::Asked => {
                    *target = format;
                    continue;
                }
                Becomes::Instead(instead) => {
                    *target = instead;
                    format!("{shape} become {instead}: {columns} columns are no multiple of {blocks}")
                }
                Becomes::Small => format!("{shape} stay as they are: {format} would be no smaller"),
                Becomes::Odd => {
                    format!("{shape} stay as they are: {columns} columns are no multiple of 32")
                }
            };
            *exceptions.entry(exception).or_default() += experts.expert_count;
        }
        experts.quantised = changed(experts, formats);
    }
    exceptions.into_iter().map(|(exception, count)| format!("{count} {exception}")).collect()
}

/// The formats, where they differ from those of the file.
fn changed(experts: &LayerExperts, formats: [WeightFormat; 3]) -> Option<[WeightFormat; 3]> {
    (formats != experts.projections().map(|matrix| matrix.format)).then_some(formats)
}

/// What quantised experts are called among the lossy settings: `experts q4_k`; `None` where they are those of the file.
pub(crate) fn in_words(spec: &ModelSpec) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for experts in spec.experts.iter().filter(|experts| experts.quantised.is_some()) {
        for (format, matrix) in experts.record_formats().into_iter().zip(experts.projections()) {
            let name = format.name().to_lowercase();
            if format != matrix.format && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    (!names.is_empty()).then(|| format!("experts {}", names.join(" and ")))
}

impl LoadConfiguration {
    /// Makes the experts of `spec` what was asked for, or what the pack holds that was named.
    ///
    /// # Errors
    /// The pack that was named cannot be read.
    pub(crate) fn apply_experts(
        &self,
        spec: &mut ModelSpec,
        notes: &mut Vec<String>,
    ) -> Result<(), EngineError> {
        if self.experts != ExpertType::Keep {
            notes.extend(quantise_experts(spec, self.experts));
            return Ok(());
        }
        let PackUse::File(path) = &self.pack else { return Ok(()) };
        let packed = PackFile::formats(path)?;
        // A pack of another model is refused by name when it is opened.
        for (experts, packed) in spec.experts.iter_mut().zip(packed) {
            let own = experts.projections().map(|matrix| matrix.format);
            let formats = std::array::from_fn(|matrix| packed[matrix].unwrap_or(own[matrix]));
            experts.quantised = changed(experts, formats);
        }
        Ok(())
    }

    /// A run with quantised experts needs their pack: quantising at every read would be slower than any disk.
    pub(crate) fn check_experts(&self, spec: &ModelSpec, has_pack: bool) -> Result<(), EngineError> {
        let missing = self.missing_pack(spec, has_pack);
        missing.map_or(Ok(()), |text| Err(self.blame(SettingKey::Experts, EngineError::BadOption(text))))
    }

    /// What to do where quantised experts have no pack.
    pub(crate) fn missing_pack(&self, spec: &ModelSpec, has_pack: bool) -> Option<String> {
        let words = in_words(spec).filter(|_| !has_pack)?;
        let name = self.experts.name();
        Some(format!(
            "there is no pack with {words} of this model: write it once with `coldpress pack MODEL --experts {name}`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use coldpress_experts::ExpertOffsets;

    use super::*;

    #[test]
    fn a_matrix_becomes_what_fits_it_and_is_smaller() {
        use WeightFormat::{BF16, Mxfp4, Q4_0, Q4K, Q5_0, Q8_0};
        let cases = [
            (BF16, 512, Q4K, Becomes::Asked),
            (BF16, 96, Q4K, Becomes::Instead(Q5_0)),
            (BF16, 96, Q8_0, Becomes::Asked),
            (BF16, 40, Q8_0, Becomes::Odd),
            (Q8_0, 512, Q8_0, Becomes::Small),
            (Q4_0, 512, Q8_0, Becomes::Small),
            (Q4_0, 96, Q4K, Becomes::Small),
            (Q4_0, 512, Mxfp4, Becomes::Asked),
        ];
        for (format, columns, asked, wanted) in cases {
            let offsets = ExpertOffsets::Each(Vec::new());
            let matrix = Projection { format, rows: 64, columns, file: 0, offsets, big_endian: false };
            assert_eq!(becomes(&matrix, asked), wanted, "{format} with {columns} columns as {asked}");
        }
    }
}
