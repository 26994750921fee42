//! The steps around the model in `tokenizer.json`: normalizer, pre-tokenizer, post-processor.
//!
//! Owns which of them are understood and what they become here. Every other is refused by its name: a step left out gives
//! other ids without a warning. Formats: the `tokenizers` crate (`normalizers`, `pre_tokenizers`, `processors`).

use serde_json::Value as Json;

use crate::TextError;
use crate::normalizer::Form;
use crate::pre_tokenizer::{Pieces, Stage};
use crate::spm::SPACE_MARK;
use crate::tokenizer::SpacePrefix;
use crate::tokenizer_file::FILE;

/// Most steps of one kind; real files have up to five.
const STEP_LIMIT: usize = 32;

/// What normalizer and pre-tokenizer become.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) forms: Vec<Form>,
    pub(crate) stages: Vec<Stage>,
    /// Spaces become [`SPACE_MARK`] before the model sees them.
    pub(crate) marks_spaces: bool,
    pub(crate) space_prefix: Option<SpacePrefix>,
    /// Text becomes bytes in GPT-2's alphabet.
    pub(crate) byte_level: bool,
}

/// Tokens that the post-processor puts around a text.
#[derive(Default)]
pub(crate) struct Around {
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

fn refused(component: impl Into<String>, detail: impl Into<String>) -> TextError {
    TextError::UnsupportedComponent { file: FILE, component: component.into(), detail: detail.into() }
}

fn malformed(reason: String) -> TextError {
    TextError::MalformedFile { file: FILE, reason }
}

/// The steps of a component that may be a sequence, flattened; `null` is none.
fn flattened<'a>(component: &'a Json, list: &str, out: &mut Vec<&'a Json>) -> Result<(), TextError> {
    if component.is_null() {
        return Ok(());
    }
    if kind(component) == "Sequence" {
        let inner = component[list].as_array();
        for step in inner.ok_or_else(|| malformed(format!("a Sequence has no list of {list}")))? {
            flattened(step, list, out)?;
        }
    } else {
        out.push(component);
    }
    if out.len() > STEP_LIMIT {
        return Err(malformed(format!("more than {STEP_LIMIT} {list}")));
    }
    Ok(())
}

fn kind(component: &Json) -> &str {
    component["type"].as_str().unwrap_or("a step without a type")
}

impl Steps {
    pub(crate) fn new(normalizer: &Json, pre_tokenizer: &Json) -> Result<Steps, TextError> {
        let mut steps = Steps::default();
        let mut list = Vec::new();
        flattened(normalizer, "normalizers", &mut list)?;
        for step in list.drain(..) {
            steps.add_normalizer(step)?;
        }
        flattened(pre_tokenizer, "pretokenizers", &mut list)?;
        for step in list {
            steps.add_pre_tokenizer(step)?;
        }
        if steps.byte_level && steps.marks_spaces {
            return Err(refused("ByteLevel together with marks for spaces", ""));
        }
        Ok(steps)
    }

    fn add_normalizer(&mut self, step: &Json) -> Result<(), TextError> {
        let form = match kind(step) {
            "NFC" => Form::Nfc,
            "NFD" => Form::Nfd,
            "NFKC" => Form::Nfkc,
            "NFKD" => Form::Nfkd,
            "Prepend" if step["prepend"] == SPACE_MARK => {
                self.space_prefix = Some(SpacePrefix::Always);
                return Ok(());
            }
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE_MARK => {
                self.marks_spaces = true;
                return Ok(());
            }
            other => return Err(refused(format!("the normalizer {other}"), shortened(step))),
        };
        if self.marks_spaces || self.space_prefix.is_some() {
            return Err(refused(format!("the normalizer {} after marks for spaces", kind(step)), ""));
        }
        self.forms.push(form);
        Ok(())
    }

    fn add_pre_tokenizer(&mut self, step: &Json) -> Result<(), TextError> {
        if self.byte_level {
            return Err(refused(format!("the pre-tokenizer {} after ByteLevel", kind(step)), ""));
        }
        match kind(step) {
            "Split" => self.add_split(step),
            "Digits" => {
                let single = step["individual_digits"].as_bool().unwrap_or(false);
                self.add_stage(if single { r"\p{N}" } else { r"\p{N}+" }, Pieces::MatchesAndGaps)
            }
            "Punctuation" if matches!(step["behavior"].as_str(), None | Some("Isolated")) => {
                self.add_stage(r"[\p{P}$+<=>^`|~]", Pieces::MatchesAndGaps)
            }
            "ByteLevel" => {
                if step["add_prefix_space"].as_bool().unwrap_or(true) {
                    if !self.stages.is_empty() {
                        return Err(refused(
                            "ByteLevel with add_prefix_space after another pre-tokenizer",
                            "",
                        ));
                    }
                    self.space_prefix = Some(SpacePrefix::UnlessThere);
                }
                if step["use_regex"].as_bool().unwrap_or(true) {
                    self.stages.push(Stage::gpt2());
                }
                self.byte_level = true;
                Ok(())
            }
            "Metaspace" => self.add_metaspace(step),
            other => Err(refused(format!("the pre-tokenizer {other}"), shortened(step))),
        }
    }

    fn add_split(&mut self, step: &Json) -> Result<(), TextError> {
        let inverted = step["invert"].as_bool().unwrap_or(false);
        let behavior = step["behavior"].as_str().unwrap_or("a Split without a behavior");
        let pieces = match (behavior, inverted) {
            ("Isolated", _) => Pieces::MatchesAndGaps,
            ("Removed", false) => Pieces::GapsOnly,
            ("Removed", true) => Pieces::MatchesOnly,
            ("MergedWithPrevious", false) => Pieces::MatchEndsPiece,
            ("MergedWithNext", false) => Pieces::MatchBeginsPiece,
            _ => return Err(refused(format!("the pre-tokenizer Split with {behavior}"), shortened(step))),
        };
        let pattern = &step["pattern"];
        match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
            // No space is left when the normalizer has marked them.
            (_, Some(" ")) if self.marks_spaces => Ok(()),
            (Some(text), _) if self.marks_spaces => {
                Err(refused("the pre-tokenizer Split after marks for spaces", text))
            }
            (Some(regex), _) => self.add_stage(regex, pieces),
            (None, Some(text)) => self.add_stage(&escaped(text), pieces),
            (None, None) => Err(malformed("a Split has no pattern".to_owned())),
        }
    }

    fn add_metaspace(&mut self, step: &Json) -> Result<(), TextError> {
        if step["replacement"] != SPACE_MARK {
            return Err(refused("the pre-tokenizer Metaspace with another replacement", shortened(step)));
        }
        if !self.stages.is_empty() {
            return Err(refused("the pre-tokenizer Metaspace after another", ""));
        }
        let old = step["add_prefix_space"].as_bool();
        let scheme =
            step["prepend_scheme"].as_str().unwrap_or(if old == Some(false) { "never" } else { "always" });
        match scheme {
            "always" => self.space_prefix = Some(SpacePrefix::UnlessThere),
            "first" => self.space_prefix = Some(SpacePrefix::AtStartUnlessThere),
            "never" => {}
            other => return Err(refused(format!("the pre-tokenizer Metaspace with {other}"), "")),
        }
        if step["split"].as_bool().unwrap_or(true) {
            self.add_stage(" ", Pieces::MatchBeginsPiece)?;
        }
        self.marks_spaces = true;
        Ok(())
    }

    fn add_stage(&mut self, pattern: &str, pieces: Pieces) -> Result<(), TextError> {
        let stage = Stage::from_pattern(pattern, pieces)
            .map_err(|reason| refused(format!("the split pattern {pattern:?}"), reason))?;
        self.stages.push(stage);
        Ok(())
    }
}

/// A pattern that matches `text` and nothing else.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        // An escaped angle bracket would be a word boundary.
        if character.is_ascii_punctuation() && !matches!(character, '<' | '>') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

fn shortened(step: &Json) -> String {
    let mut text = step.to_string();
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl Around {
    /// Reads the post-processor for single texts.
    pub(crate) fn new(post_processor: &Json) -> Result<Around, TextError> {
        let mut list = Vec::new();
        flattened(post_processor, "processors", &mut list)?;
        let mut around = Around::default();
        for step in list {
            match kind(step) {
                // Changes offsets only.
                "ByteLevel" => {}
                "TemplateProcessing" => around.add_template(step)?,
                other => return Err(refused(format!("the post-processor {other}"), shortened(step))),
            }
        }
        Ok(around)
    }

    fn add_template(&mut self, step: &Json) -> Result<(), TextError> {
        let mut text_seen = false;
        for part in step["single"].as_array().into_iter().flatten() {
            if part["Sequence"].is_object() {
                text_seen = true;
                continue;
            }
            let name = part["SpecialToken"]["id"].as_str();
            let name =
                name.ok_or_else(|| malformed("a part of TemplateProcessing is not known".to_owned()))?;
            let place = if text_seen { &mut self.after } else { &mut self.before };
            if place.replace(name.to_owned()).is_some() {
                return Err(refused("TemplateProcessing with several tokens on one side", shortened(step)));
            }
        }
        Ok(())
    }
}
