//! The key-value section of a model: lookup by key with the type that the caller needs.
//!
//! Every getter has a twin with `opt_` in front. The plain one fails with `MissingKey` when the key is
//! absent, the twin returns `None`. Both fail when the value is there with a type or a range that does not
//! fit: there is no silent default. Integers are accepted from any integer type that holds the value, because
//! converters disagree about widths and signs.

use std::path::{Path, PathBuf};

use crate::error::FormatError;
use crate::value::{Array, StringArray, Value};

/// The metadata of a model, in the order of the file.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    /// Positions in `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Builds the index and refuses a key that appears twice. `path` is the file that errors name.
    pub fn new(path: &Path, entries: Vec<(String, Value)>) -> Result<Metadata, FormatError> {
        let mut by_key: Vec<u32> =
            (0..u32::try_from(entries.len()).expect("fewer keys than limits::MAX_KEYS")).collect();
        let key_of = |position: u32| entries[position as usize].0.as_str();
        by_key.sort_by(|&left, &right| key_of(left).cmp(key_of(right)));
        if let Some(pair) = by_key.windows(2).find(|pair| key_of(pair[0]) == key_of(pair[1])) {
            let key = key_of(pair[0]).to_owned();
            return Err(FormatError::DuplicateKey { path: path.to_owned(), key, detail: "" });
        }
        Ok(Metadata { path: path.to_owned(), entries, by_key })
    }

    /// These keys and, behind `prefix`, those of `other`.
    ///
    /// # Errors
    /// A key appears twice.
    pub(crate) fn with(self, prefix: &str, other: Metadata) -> Result<Metadata, FormatError> {
        let mut entries = self.entries;
        entries.extend(other.entries.into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)));
        Metadata::new(&self.path, entries)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key as stored.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self
            .by_key
            .binary_search_by(|&position| self.entries[position as usize].0.as_str().cmp(key))
            .ok()?;
        Some(&self.entries[self.by_key[found] as usize].1)
    }

    /// The file that errors name: the file itself, or part 1 of a set.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, FormatError> {
        found.ok_or_else(|| FormatError::MissingKey { path: self.path.clone(), key: key.to_owned() })
    }

    fn wrong_type(&self, key: &str, value: &Value, wanted: &'static str) -> FormatError {
        let (path, key, found) = (self.path.clone(), key.to_owned(), value.describe());
        FormatError::WrongValueType { path, key, found, wanted }
    }

    fn out_of_range(&self, key: &str, found: String, wanted: &'static str) -> FormatError {
        FormatError::ValueOutOfRange { path: self.path.clone(), key: key.to_owned(), found, wanted }
    }

    fn not_utf8(&self, key: &str, element: String, error: &std::str::Utf8Error) -> FormatError {
        let (path, key, position) = (self.path.clone(), key.to_owned(), error.valid_up_to());
        FormatError::NotUtf8 { path, key, element, position }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, wanted: &'static str) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.integer().ok_or_else(|| self.wrong_type(key, value, wanted))?;
        T::try_from(number).map(Some).map_err(|_| self.out_of_range(key, value.describe(), wanted))
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<Vec<T>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(array) = value else { return Err(self.wrong_type(key, value, wanted)) };
        let numbers = array.integers().ok_or_else(|| self.wrong_type(key, value, wanted))?;
        let convert = |(index, number): (usize, i128)| {
            T::try_from(number)
                .map_err(|_| self.out_of_range(key, format!("{number} in element {index}"), wanted))
        };
        numbers.enumerate().map(convert).collect::<Result<_, _>>().map(Some)
    }

    fn strings(&self, key: &str) -> Result<Option<&StringArray>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(strings))) => Ok(Some(strings)),
            Some(value) => Err(self.wrong_type(key, value, "an array of string")),
        }
    }

    /// A value for each of `layers` layers: an array must have that many elements, a single value holds for
    /// all.
    fn per_layer<T: Clone>(
        &self,
        key: &str,
        layers: usize,
        single: impl Fn() -> Result<Option<T>, FormatError>,
        array: impl Fn() -> Result<Option<Vec<T>>, FormatError>,
    ) -> Result<Option<Vec<T>>, FormatError> {
        if !matches!(self.get(key), Some(Value::Array(_))) {
            return Ok(single()?.map(|value| vec![value; layers]));
        }
        let found = array()?;
        match found {
            Some(elements) if elements.len() != layers => {
                let found = format!("an array of {} elements", elements.len());
                Err(self.out_of_range(key, found, "the number of layers of this model"))
            }
            other => Ok(other),
        }
    }
}

/// Writes both twins of a getter from the body of the `opt_` one.
macro_rules! getters {
    ($($(#[$documentation:meta])* $name:ident, $optional:ident($($argument:ident: $type:ty),*) -> $result:ty
        => |$this:ident, $key:ident| $body:expr;)*) => {
        impl Metadata {
            $(
                $(#[$documentation])*
                pub fn $name(&self, key: &str $(, $argument: $type)*) -> Result<$result, FormatError> {
                    let found = self.$optional(key $(, $argument)*)?;
                    self.required(key, found)
                }

                #[doc = concat!("Like [`Self::", stringify!($name), "`], with `None` for an absent key.")]
                pub fn $optional(&self, $key: &str $(, $argument: $type)*) -> Result<Option<$result>, FormatError> {
                    let $this = self;
                    $body
                }
            )*
        }
    };
}

getters! {
    /// An integer from 0 to 2^32-1.
    u32, opt_u32() -> u32 => |this, key| this.integer(key, "an integer from 0 to 4294967295 (u32)");
    /// An integer from -2^31 to 2^31-1.
    i32, opt_i32() -> i32 => |this, key| this.integer(key, "an integer from -2147483648 to 2147483647 (i32)");
    /// An integer from 0 to 2^64-1.
    u64, opt_u64() -> u64 => |this, key| this.integer(key, "an integer from 0 to 2^64-1 (u64)");
    /// An integer from -2^63 to 2^63-1.
    i64, opt_i64() -> i64 => |this, key| this.integer(key, "an integer from -2^63 to 2^63-1 (i64)");
    /// A float32, or a float64 rounded to the nearest float32. An integer is not a float.
    f32, opt_f32() -> f32 => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::Float32(value)) => Ok(Some(*value)),
        Some(Value::Float64(value)) => Ok(Some(*value as f32)),
        Some(other) => Err(this.wrong_type(key, other, "a float")),
    };
    /// A bool.
    bool, opt_bool() -> bool => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(this.wrong_type(key, other, "a bool")),
    };
    /// A string that is UTF-8 text.
    string, opt_string() -> &str => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => {
            text.to_str().map(Some).map_err(|error| this.not_utf8(key, String::new(), &error))
        }
        Some(other) => Err(this.wrong_type(key, other, "a string")),
    };
    /// A string in its stored bytes, text or not.
    byte_string, opt_byte_string() -> &[u8] => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_bytes())),
        Some(other) => Err(this.wrong_type(key, other, "a string")),
    };
    /// An array of strings, all UTF-8 text. For token lists with raw bytes use [`Self::byte_string_array`].
    string_array, opt_string_array() -> Vec<String> => |this, key| {
        let Some(strings) = this.strings(key)? else { return Ok(None) };
        let convert = |(index, bytes): (usize, &[u8])| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(this.not_utf8(key, format!(", element {index},"), &error)),
        };
        strings.iter().enumerate().map(convert).collect::<Result<_, _>>().map(Some)
    };
    /// An array of strings with U+FFFD in place of what is not UTF-8.
    string_array_lossy, opt_string_array_lossy() -> Vec<String> => |this, key| {
        Ok(this.strings(key)?.map(StringArray::to_strings_lossy))
    };
    /// An array of strings in their stored bytes, text or not, without a copy.
    byte_string_array, opt_byte_string_array() -> &StringArray => |this, key| this.strings(key);
    /// An array of integers that each fit u32.
    u32_array, opt_u32_array() -> Vec<u32> => |this, key| this.integers(key, "an array of integers (u32)");
    /// An array of integers that each fit i32.
    i32_array, opt_i32_array() -> Vec<i32> => |this, key| this.integers(key, "an array of integers (i32)");
    /// An array of float32, or of float64 rounded to the nearest float32.
    f32_array, opt_f32_array() -> Vec<f32> => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::Array(Array::Float32(elements))) => Ok(Some(elements.clone())),
        Some(Value::Array(Array::Float64(elements))) => Ok(Some(elements.iter().map(|&value| value as f32).collect())),
        Some(other) => Err(this.wrong_type(key, other, "an array of floats")),
    };
    /// An array of bools.
    bool_array, opt_bool_array() -> Vec<bool> => |this, key| match this.get(key) {
        None => Ok(None),
        Some(Value::Array(Array::Bool(elements))) => Ok(Some(elements.clone())),
        Some(other) => Err(this.wrong_type(key, other, "an array of bool")),
    };
    /// A number for each of `layers` layers: an array of that length, or one number that holds for all.
    u32_per_layer, opt_u32_per_layer(layers: usize) -> Vec<u32> => |this, key| {
        this.per_layer(key, layers, || this.opt_u32(key), || this.opt_u32_array(key))
    };
    /// A float for each of `layers` layers: an array of that length, or one float that holds for all.
    f32_per_layer, opt_f32_per_layer(layers: usize) -> Vec<f32> => |this, key| {
        this.per_layer(key, layers, || this.opt_f32(key), || this.opt_f32_array(key))
    };
    /// A bool for each of `layers` layers: an array of that length, or one bool that holds for all.
    bool_per_layer, opt_bool_per_layer(layers: usize) -> Vec<bool> => |this, key| {
        this.per_layer(key, layers, || this.opt_bool(key), || this.opt_bool_array(key))
    };
}
