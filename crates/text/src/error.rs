//! The errors of this crate: bad tokenizer metadata, bad templates, bad messages.

use thiserror::Error;

/// What went wrong, by what the caller can do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer model is not one this crate implements.
    #[error(
        "tokenizer.ggml.model is \"{0}\"; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)"
    )]
    UnsupportedModel(String),

    /// The pre-tokenizer is missing or not known; a wrong one would silently give other ids.
    #[error(
        "tokenizer.ggml.pre is {}; a guess would give wrong token ids without a warning. \
         Name the one the model was trained with (--pre-tokenizer): {known}",
        match found { Some(name) => format!("\"{name}\", which is not known"), None => "missing".to_owned() }
    )]
    UnknownPreTokenizer {
        /// The name in the file, if there is one.
        found: Option<String>,
        /// All known names, separated by commas.
        known: String,
    },

    /// `tokenizer.ggml.tokens` is empty.
    #[error("tokenizer.ggml.tokens is empty: the file holds no vocabulary")]
    EmptyVocabulary,

    /// The vocabulary has more bytes or tokens than 32-bit ids and offsets can address.
    #[error("the vocabulary is too large: {tokens} tokens, {bytes} bytes of text (limits: 2^31 each)")]
    VocabularyTooLarge {
        /// Number of tokens.
        tokens: usize,
        /// Total bytes of their text.
        bytes: usize,
    },

    /// A parallel array does not have one entry per token.
    #[error("{key} has {found} entries, but there are {tokens} tokens")]
    LengthMismatch {
        /// The GGUF key.
        key: &'static str,
        /// Entries found.
        found: usize,
        /// Entries wanted.
        tokens: usize,
    },

    /// A key that this tokenizer model needs is absent.
    #[error("{key} is missing, and a \"{model}\" tokenizer needs it")]
    MissingKey {
        /// The GGUF key.
        key: &'static str,
        /// The tokenizer model.
        model: &'static str,
    },

    /// A token is not valid UTF-8.
    #[error("token {id} is not valid UTF-8: {lossy:?}")]
    TokenNotUtf8 {
        /// Id of the token.
        id: u32,
        /// Its text with replacement characters.
        lossy: String,
    },

    /// Two tokens have the same text.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text.
        text: String,
    },

    /// A token type that GGUF does not define.
    #[error("token {id} has type {number}; GGUF defines 0 to 6")]
    UnknownTokenType {
        /// Id of the token.
        id: u32,
        /// The number found.
        number: i32,
    },

    /// A token marked as a byte is not written `<0xHH>`.
    #[error("token {id} is marked as a byte but its text is {text:?}; a byte is written <0x00> to <0xFF>")]
    BadByteToken {
        /// Id of the token.
        id: u32,
        /// Its text.
        text: String,
    },

    /// A score is not a number.
    #[error("token {id} has a score that is not a number")]
    BadScore {
        /// Id of the token.
        id: u32,
    },

    /// An SPM vocabulary can express neither unknown bytes nor an unknown token.
    #[error(
        "the vocabulary has no token for byte 0x{byte:02X} and no unknown token, so some text cannot be encoded"
    )]
    IncompleteBytes {
        /// The first byte without a token.
        byte: u8,
    },

    /// A merge is not two tokens separated by one space.
    #[error("merge {rank} is {text:?}; a merge is two tokens separated by a space")]
    BadMerge {
        /// Index of the merge.
        rank: usize,
        /// Its text.
        text: String,
    },

    /// A merge names or makes a token that does not exist.
    #[error("merge {rank} ({merge:?}) needs the token {token:?}, which is not in the vocabulary")]
    MergeTokenAbsent {
        /// Index of the merge.
        rank: usize,
        /// Text of the merge.
        merge: String,
        /// The absent token.
        token: String,
    },

    /// The same merge is listed twice.
    #[error("merge {second} ({merge:?}) repeats merge {first}")]
    DuplicateMerge {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
        /// Text of the merge.
        merge: String,
    },

    /// A special token id lies outside the vocabulary.
    #[error("{key} is {id}, but there are only {tokens} tokens")]
    SpecialIdOutOfRange {
        /// The GGUF key.
        key: &'static str,
        /// The id found.
        id: u32,
        /// Size of the vocabulary.
        tokens: usize,
    },

    /// The file asks for a token at the start or end of each prompt and does not say which.
    #[error("{flag} is set, but {key} is not")]
    SpecialIdMissing {
        /// The flag that is set.
        flag: &'static str,
        /// The id that is missing.
        key: &'static str,
    },

    /// The special tokens could not be compiled into a matcher.
    #[error("the special tokens of this vocabulary cannot be matched: {0}")]
    SpecialMatcher(String),

    /// A file of the tokenizer cannot be read.
    #[error("{path}: {error}")]
    FileUnreadable {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },

    /// A file of the tokenizer is larger than this crate accepts.
    #[error("{file} is {bytes} bytes long; the limit is {limit}")]
    FileTooLarge {
        /// The file.
        file: String,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// A folder holds no tokenizer that is known.
    #[error("{folder} holds none of tokenizer.json, tekken.json and tiktoken.model")]
    NoTokenizerFile {
        /// The folder.
        folder: String,
    },

    /// A file of the tokenizer is not what its name promises.
    #[error("{file}: {reason}")]
    MalformedFile {
        /// The file.
        file: &'static str,
        /// What is wrong, with the place.
        reason: String,
    },

    /// A tokenizer file asks for a step that this crate does not have; leaving it out would give other ids.
    #[error("{file} asks for {component}, which is not supported{}{detail}", if detail.is_empty() { "" } else { ": " })]
    UnsupportedComponent {
        /// The file.
        file: &'static str,
        /// The step, as the file names it.
        component: String,
        /// More about it; may be empty.
        detail: String,
    },

    /// The template is larger than this crate accepts.
    #[error("the chat template is {bytes} bytes long; the limit is {limit}")]
    TemplateTooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },

    /// The template does not parse.
    #[error("the chat template does not parse (line {line}): {message}")]
    TemplateSyntax {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// What is wrong.
        message: String,
    },

    /// Rendering failed. There is no fallback prompt.
    #[error("the chat template failed (line {line}): {message}")]
    TemplateRender {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },

    /// The template itself refused these messages (`raise_exception`).
    #[error("the chat template refused the messages (line {line}): {message}")]
    TemplateRefused {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// The template's own words.
        message: String,
    },

    /// The template used more steps or memory than a prompt of this size may need.
    #[error("the chat template ran too long or built too much text (line {line}): {message}")]
    TemplateTooExpensive {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// Which limit was hit.
        message: String,
    },

    /// A message is not an object with a usable role.
    #[error("message {index}: {reason}")]
    BadMessage {
        /// Index of the message, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },

    /// User text holds a control token that is a single character, which no marker can break up.
    #[error("the message holds U+{code_point:04X}, which is a control token of this model (id {id})")]
    ControlCharacterInText {
        /// The character.
        code_point: u32,
        /// Id of the token.
        id: u32,
    },

    /// The input uses all 66 Unicode noncharacters, so none is left to mark user text with.
    #[error("the messages use every Unicode noncharacter; remove at least one of them")]
    NoFreeNoncharacter,

    /// The vocabulary is too large for the trie that grammars walk.
    #[error(
        "the vocabulary is too large for grammars: {tokens} tokens, {bytes} bytes of text (limits: {tokens_max} and {bytes_max})"
    )]
    VocabularyTooLargeForGrammars {
        /// Number of tokens.
        tokens: usize,
        /// Total bytes of those that are text.
        bytes: usize,
        /// Limit of the number.
        tokens_max: usize,
        /// Limit of the bytes.
        bytes_max: usize,
    },

    /// A JSON schema asks for something that cannot be enforced.
    #[error("the JSON schema cannot be enforced at {path}: {reason}")]
    SchemaRefused {
        /// Where, as a JSON pointer: `#/properties/a/pattern`.
        path: String,
        /// What, in one sentence.
        reason: String,
    },

    /// A grammar or regular expression is malformed, nothing satisfies it, or it costs too much.
    #[error("the {kind} cannot be used: {reason}")]
    GrammarRefused {
        /// "regular expression" or "Lark grammar".
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },

    /// The text of a grammar is larger than this crate accepts.
    #[error("the {kind} is {bytes} bytes long; the limit is {limit}")]
    GrammarTooLarge {
        /// "regular expression" or "Lark grammar".
        kind: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },

    /// Following the grammar took more steps or memory than a token may cost.
    #[error("the grammar became too expensive to follow after {tokens} tokens of the answer: {reason}")]
    GrammarTooExpensive {
        /// Tokens accepted so far.
        tokens: usize,
        /// Which limit was hit.
        reason: String,
    },

    /// A token was chosen that the grammar does not allow at this place.
    #[error("token {id} ({text:?}) is not allowed by the grammar at this place")]
    TokenNotAllowed {
        /// Its id.
        id: u32,
        /// What it writes.
        text: String,
    },

    /// The grammar goes on, but the vocabulary has no token that writes what may come next.
    #[error("no token of this vocabulary continues the answer as the grammar asks")]
    NoTokenAllowed,

    /// The logits do not cover the vocabulary.
    #[error("{found} logits were given for a vocabulary of {tokens} tokens")]
    TooFewLogits {
        /// Logits given.
        found: usize,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
}
