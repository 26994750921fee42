//! Metadata values as they are stored: numbers, strings that may hold any bytes, and arrays.
//!
//! Strings are kept as bytes because some files store raw bytes in token lists. Text is offered where the
//! bytes are UTF-8; see [`ByteString`] and [`StringArray`]. Typed access by key is in `metadata.rs`.

use std::borrow::Cow;
use std::fmt;

/// The type of a metadata value, with the numbers and names of the format document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the format document")]
pub enum ValueType {
    Uint8,
    Int8,
    Uint16,
    Int16,
    Uint32,
    Int32,
    Float32,
    Bool,
    String,
    Array,
    Uint64,
    Int64,
    Float64,
}

/// Type, name, smallest number of bytes of one value in a file; the position is the number in files.
const VALUE_TYPES: [(ValueType, &str, u64); 13] = [
    (ValueType::Uint8, "uint8", 1),
    (ValueType::Int8, "int8", 1),
    (ValueType::Uint16, "uint16", 2),
    (ValueType::Int16, "int16", 2),
    (ValueType::Uint32, "uint32", 4),
    (ValueType::Int32, "int32", 4),
    (ValueType::Float32, "float32", 4),
    (ValueType::Bool, "bool", 1),
    (ValueType::String, "string", 8),
    (ValueType::Array, "array", 12),
    (ValueType::Uint64, "uint64", 8),
    (ValueType::Int64, "int64", 8),
    (ValueType::Float64, "float64", 8),
];

impl ValueType {
    /// The type with this number in files.
    pub fn from_id(id: u32) -> Option<ValueType> {
        VALUE_TYPES.get(usize::try_from(id).ok()?).map(|row| row.0)
    }

    /// The number in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name in the format document.
    pub fn name(self) -> &'static str {
        VALUE_TYPES[self as usize].1
    }

    /// Fewest bytes that a value of this type takes in a file: the size of a number, or of an empty string or
    /// array.
    pub(crate) fn least_bytes(self) -> u64 {
        VALUE_TYPES[self as usize].2
    }
}

/// A string as stored: any bytes, usually UTF-8 text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ByteString(pub Vec<u8>);

impl ByteString {
    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, or the position of the first byte that is not UTF-8.
    pub fn to_str(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(&self.0)
    }

    /// The text with U+FFFD in place of what is not UTF-8.
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_str_lossy(), formatter)
    }
}

/// An array of strings in two allocations, however many elements it has.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl StringArray {
    pub(crate) fn with_capacity(elements: usize) -> StringArray {
        StringArray { bytes: Vec::new(), ends: Vec::with_capacity(elements) }
    }

    /// Adds `length` zero bytes as one more element and returns them to be filled.
    pub(crate) fn push_zeroed(&mut self, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + length, 0);
        let end = u32::try_from(self.bytes.len()).expect("a header is shorter than 4 GiB, see limits.rs");
        self.ends.push(end);
        &mut self.bytes[start..]
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of one element, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[start..end])
    }

    /// The bytes of all elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).expect("index is below len"))
    }

    /// All elements as text, with U+FFFD in place of what is not UTF-8.
    pub fn to_strings_lossy(&self) -> Vec<String> {
        self.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

impl<'a> FromIterator<&'a [u8]> for StringArray {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(elements: I) -> StringArray {
        let mut array = StringArray::default();
        for element in elements {
            array.push_zeroed(element.len()).copy_from_slice(element);
        }
        array
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

/// An array value. All elements have one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "one variant per element type")]
pub enum Array {
    Uint8(Vec<u8>),
    Int8(Vec<i8>),
    Uint16(Vec<u16>),
    Int16(Vec<i16>),
    Uint32(Vec<u32>),
    Int32(Vec<i32>),
    Float32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    Array(Vec<Array>),
    Uint64(Vec<u64>),
    Int64(Vec<i64>),
    Float64(Vec<f64>),
}

/// Runs the same expression on the elements of every variant.
macro_rules! with_elements {
    ($array:expr, $elements:ident => $body:expr) => {
        match $array {
            Array::Uint8($elements) => $body,
            Array::Int8($elements) => $body,
            Array::Uint16($elements) => $body,
            Array::Int16($elements) => $body,
            Array::Uint32($elements) => $body,
            Array::Int32($elements) => $body,
            Array::Float32($elements) => $body,
            Array::Bool($elements) => $body,
            Array::String($elements) => $body,
            Array::Array($elements) => $body,
            Array::Uint64($elements) => $body,
            Array::Int64($elements) => $body,
            Array::Float64($elements) => $body,
        }
    };
}

impl Array {
    /// Type of the elements, also of an empty array.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::Uint8(_) => ValueType::Uint8,
            Array::Int8(_) => ValueType::Int8,
            Array::Uint16(_) => ValueType::Uint16,
            Array::Int16(_) => ValueType::Int16,
            Array::Uint32(_) => ValueType::Uint32,
            Array::Int32(_) => ValueType::Int32,
            Array::Float32(_) => ValueType::Float32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::Array(_) => ValueType::Array,
            Array::Uint64(_) => ValueType::Uint64,
            Array::Int64(_) => ValueType::Int64,
            Array::Float64(_) => ValueType::Float64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        with_elements!(self, elements => elements.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of an integer array in a type that holds them all; `None` for other arrays.
    pub fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Array::Uint8(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Int8(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Uint16(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Int16(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Uint32(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Int32(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Uint64(elements) => Box::new(elements.iter().map(|&element| element.into())),
            Array::Int64(elements) => Box::new(elements.iter().map(|&element| element.into())),
            _ => return None,
        })
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "one variant per value type")]
pub enum Value {
    Uint8(u8),
    Int8(i8),
    Uint16(u16),
    Int16(i16),
    Uint32(u32),
    Int32(i32),
    Float32(f32),
    Bool(bool),
    String(ByteString),
    Array(Array),
    Uint64(u64),
    Int64(i64),
    Float64(f64),
}

impl Value {
    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::Uint8(_) => ValueType::Uint8,
            Value::Int8(_) => ValueType::Int8,
            Value::Uint16(_) => ValueType::Uint16,
            Value::Int16(_) => ValueType::Int16,
            Value::Uint32(_) => ValueType::Uint32,
            Value::Int32(_) => ValueType::Int32,
            Value::Float32(_) => ValueType::Float32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::Uint64(_) => ValueType::Uint64,
            Value::Int64(_) => ValueType::Int64,
            Value::Float64(_) => ValueType::Float64,
        }
    }

    /// An integer of any width and sign; `None` for other types.
    pub fn integer(&self) -> Option<i128> {
        Some(match self {
            Value::Uint8(value) => (*value).into(),
            Value::Int8(value) => (*value).into(),
            Value::Uint16(value) => (*value).into(),
            Value::Int16(value) => (*value).into(),
            Value::Uint32(value) => (*value).into(),
            Value::Int32(value) => (*value).into(),
            Value::Uint64(value) => (*value).into(),
            Value::Int64(value) => (*value).into(),
            _ => return None,
        })
    }

    /// What the value is, for a message: `uint32 5`, `array of 3 float32`, `string "a"`.
    pub fn describe(&self) -> String {
        const LONGEST_TEXT: usize = 40;
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type().name()),
            Value::Float32(value) => format!("float32 {value}"),
            Value::Float64(value) => format!("float64 {value}"),
            Value::Bool(value) => format!("bool {value}"),
            Value::String(value) => {
                let text: String = value.to_str_lossy().chars().take(LONGEST_TEXT).collect();
                format!("string {text:?}")
            }
            _ => {
                let number = self.integer().expect("every other type is an integer");
                format!("{} {number}", self.value_type().name())
            }
        }
    }
}

macro_rules! value_from {
    ($($type:ty => $variant:ident;)*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value)
            }
        }
        impl From<Vec<$type>> for Value {
            fn from(elements: Vec<$type>) -> Value {
                Value::Array(Array::$variant(elements))
            }
        })*
    };
}

value_from! {
    u8 => Uint8; i8 => Int8; u16 => Uint16; i16 => Int16; u32 => Uint32; i32 => Int32; f32 => Float32;
    bool => Bool; u64 => Uint64; i64 => Int64; f64 => Float64;
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(ByteString(text.as_bytes().to_vec()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(ByteString(text.into_bytes()))
    }
}

impl From<&[String]> for Value {
    fn from(texts: &[String]) -> Value {
        Value::Array(Array::String(texts.iter().map(String::as_bytes).collect()))
    }
}
