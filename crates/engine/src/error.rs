//! Errors of the library, by what the caller can do about them.

use coldpress_experts::ExpertError;
use coldpress_formats::FormatError;
use coldpress_memory::{DoesNotFit, MemoryError, OverBudget, apart};
use coldpress_model::ModelError;
use coldpress_text::TextError;

/// What can go wrong from opening a model to the last token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The budget cannot work; nothing was loaded. Shows every part, the smallest budget and what would help.
    #[error(transparent)]
    DoesNotFit(Box<DoesNotFit>),
    /// The plan takes memory that cannot be had now; nothing was loaded. Give a smaller budget, free memory, or open the
    /// memory gate.
    #[error("{0}")]
    NotAvailable(Box<crate::gate::Gate>),
    /// The model file is damaged, incomplete or of an unknown kind.
    #[error(transparent)]
    BadModelFile(#[from] FormatError),
    /// The model is readable but cannot be computed.
    #[error(transparent)]
    BadModel(ModelError),
    /// The tokenizer or chat template of the file cannot be used.
    #[error("the tokenizer of the model file cannot be used: {0}")]
    Tokenizer(TextError),
    /// The chat template refuses the messages.
    #[error(transparent)]
    Template(TextError),
    /// What an answer was to look like cannot be enforced.
    #[error(transparent)]
    Grammar(TextError),
    /// The prompt and the answer do not fit the context.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}: shorten the prompt or load with a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the KV cache.
        context: usize,
    },
    /// The text is longer than any prompt that fits the context.
    #[error(
        "the prompt has {bytes} bytes or more; {context} tokens of context hold at most {bytes_max}: shorten it or load with a larger context"
    )]
    TextTooLong {
        /// Bytes seen.
        bytes: usize,
        /// Bytes that could fit.
        bytes_max: usize,
        /// Positions of the KV cache.
        context: usize,
    },
    /// A model file is not what it was when it was opened.
    #[error("{} was changed while in use: load it again", path.display())]
    FileChanged {
        /// The file.
        path: std::path::PathBuf,
    },
    /// A model file is no longer where it was opened.
    #[error("{} is no longer there ({source}): experts are read from it while the model runs; put it back", path.display())]
    FileGone {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// An output would overwrite something that is not an output of this kind.
    #[error("{}: {reason}", path.display())]
    BadOutput {
        /// Where the output was to go.
        path: std::path::PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// An option has a value outside its range or does not go with another one.
    #[error("{0}")]
    BadOption(String),
    /// The thread that answers requests ended by a defect of the program; nothing further will be answered.
    #[error(
        "the engine failed and answers nothing any more ({reason}): restart it; this is a defect and should be reported"
    )]
    Defect {
        /// What the thread said last.
        reason: String,
    },
    /// The caller's observer asked to stop.
    #[error("stopped on request")]
    Cancelled,
    /// After the first token more was held than planned.
    #[error(
        "the plan is wrong: {purpose} takes {} and {} were planned; a budget of {} more keeps the promise, and \
         this should be reported with the output of `coldpress plan`",
        apart([*held, *planned])[0], apart([*held, *planned])[1], held.saturating_sub(*planned)
    )]
    Probe {
        /// The share of the plan.
        purpose: coldpress_memory::Purpose,
        /// What was planned.
        planned: coldpress_memory::Bytes,
        /// What is held.
        held: coldpress_memory::Bytes,
    },
    /// Reading experts or writing a pack failed.
    #[error(transparent)]
    Expert(ExpertError),
    /// The forward pass failed.
    #[error(transparent)]
    Forward(ModelError),
    /// The system refused memory that the plan had counted on.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl EngineError {
    /// Whether the model file itself is at fault (exit code 4 of the program).
    pub fn is_bad_model(&self) -> bool {
        matches!(self, Self::BadModelFile(_) | Self::BadModel(_) | Self::Tokenizer(_))
    }
}

impl From<OverBudget> for EngineError {
    fn from(error: OverBudget) -> Self {
        Self::Memory(error.into())
    }
}

impl From<ExpertError> for EngineError {
    fn from(error: ExpertError) -> Self {
        match error {
            ExpertError::Cancelled => Self::Cancelled,
            error => Self::Expert(error),
        }
    }
}

impl From<DoesNotFit> for EngineError {
    fn from(error: DoesNotFit) -> Self {
        Self::DoesNotFit(Box::new(error))
    }
}
