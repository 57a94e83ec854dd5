//! Decoding of requests with the refusals that nats-server gives (API error 10025).

use super::reader::{DecodeError, Kind, Reader};
use super::scan::{SyntaxError, scan_value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use tidelock_base::{ApiError, ApiErrorCode};

/// A type that is read from JSON as Go reads it: keys in any case, the last of several equal keys wins, `null` is the
/// same as absent.
pub trait Decode: Default {
    /// What Go calls the type, as error texts show it.
    fn go_type() -> Cow<'static, str>;

    /// Takes the value before the reader and stores it in `self`.
    ///
    /// # Errors
    /// The value has another type, or holds an unknown field where those are refused.
    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError>;
}

/// Decodes a request body. An empty body gives the default; of several values after one another each is decoded over
/// the one before, as nats-server does. With `strict`, unknown fields are refused.
///
/// # Errors
/// 10025 with Go's text.
pub fn decode_strict<T: Decode>(body: &[u8], strict: bool) -> Result<T, ApiError> {
    let mut value = T::default();
    let mut pos = 0;
    while let Some(end) = scan_value(body, pos).map_err(|e| invalid_json(&e.to_string()))? {
        read_value(&mut value, body, pos, strict).map_err(|e| invalid_json(&e.to_string()))?;
        pos = end;
    }
    Ok(value)
}

/// Decodes the body of an endpoint whose body is optional: one that does not start with `{` or `[` counts as none.
///
/// # Errors
/// As [`decode_strict`].
pub fn decode_optional<T: Decode>(body: &[u8], strict: bool) -> Result<T, ApiError> {
    match body.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{' | b'[') => decode_strict(body, strict),
        _ => Ok(T::default()),
    }
}

/// Decodes one value and ignores unknown fields: the bodies of `CONSUMER.MSG.NEXT`, `CONSUMER.RESET`,
/// `CONSUMER.UNPIN`, `DIRECT.GET` and of requests to the system account.
///
/// # Errors
/// The body is empty, is no JSON, holds more than one value, or a value of the wrong type.
pub fn decode_lenient<T: Decode>(body: &[u8]) -> Result<T, DecodeError> {
    let mut value = T::default();
    let syntax = |e: SyntaxError| DecodeError::new(e.without_offset());
    let end = scan_value(body, 0)
        .map_err(syntax)?
        .ok_or_else(|| DecodeError::new("unexpected end of JSON input".to_owned()))?;
    if scan_value(body, end).map_err(syntax)?.is_some() {
        return Err(DecodeError::new(
            "invalid character after top-level value".to_owned(),
        ));
    }
    read_value(&mut value, body, 0, false)?;
    Ok(value)
}

/// Whether a body counts as empty where one is required or forbidden: no bytes, or an object without members.
#[must_use]
pub fn is_empty_request(body: &[u8]) -> bool {
    if body.is_empty() {
        return true;
    }
    let text = body.trim_ascii();
    text.strip_prefix(b"{")
        .and_then(|rest| rest.strip_suffix(b"}"))
        .is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// Feeds bytes from anywhere to every decoder; nothing may panic.
pub fn fuzz(data: &[u8]) {
    for strict in [true, false] {
        let _ = decode_strict::<crate::StreamConfigRequest>(data, strict);
        let _ = decode_strict::<crate::CreateConsumerRequest>(data, strict);
    }
    let _ = decode_optional::<crate::StreamInfoRequest>(data, true);
    let _ = decode_lenient::<crate::PullRequest>(data);
    let _ = decode_lenient::<crate::DirectGetRequest>(data);
    let _ = decode_strict::<crate::StreamInfo>(data, false);
    let _ = decode_strict::<crate::ConsumerInfo>(data, false);
    let _ = is_empty_request(data);
}

fn read_value<T: Decode>(value: &mut T, body: &[u8], pos: usize, strict: bool) -> Result<(), DecodeError> {
    let mut reader = Reader::new(body, pos, strict, T::go_type());
    if reader.kind() == Kind::Null {
        return Ok(());
    }
    value.decode(&mut reader)?;
    debug_assert!(reader.pos() <= body.len(), "the reader stays inside the body");
    Ok(())
}

fn invalid_json(text: &str) -> ApiError {
    ApiError::with(ApiErrorCode::InvalidJSON, &[text])
}

/// Whether a value is the zero value that Go's `omitempty` leaves out.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Implements [`Decode`] for a struct: every field by name, with the JSON key where it differs (`field = "key"`) and
/// the Go type where the Rust type does not tell it (`field: "int"`). Leaving a field out does not compile.
macro_rules! decodable {
    ($name:ident as $go:literal { $($field:ident $(= $key:literal)? $(: $as:literal)?),* $(,)? }) => {
        impl $crate::json::Decode for $name {
            fn go_type() -> std::borrow::Cow<'static, str> {
                std::borrow::Cow::Borrowed(concat!("server.", $go))
            }

            fn decode(
                &mut self,
                reader: &mut $crate::json::Reader<'_>,
            ) -> Result<(), $crate::json::DecodeError> {
                if reader.null() {
                    return Ok(());
                }
                reader.object(concat!("server.", $go), |reader, key| self.decode_field(key, reader))
            }
        }

        impl $name {
            /// Takes the value of the member `key`, wherever the object around it comes from.
            pub(crate) fn decode_field(
                &mut self,
                key: &str,
                reader: &mut $crate::json::Reader<'_>,
            ) -> Result<(), $crate::json::DecodeError> {
                let Self { $($field),* } = self;
                $(if key.eq_ignore_ascii_case($crate::json::decodable!(@key $field $($key)?)) {
                    let result = $crate::json::Decode::decode($field, reader);
                    $(let result = result.map_err(|error| reader.retyped(error, $as));)?
                    return result;
                })*
                reader.unknown(key)
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use decodable;

impl Decode for bool {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("bool")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if !reader.null() {
            *self = reader.boolean()?;
        }
        Ok(())
    }
}

impl Decode for String {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("string")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if !reader.null() {
            *self = reader.string("string")?.into_owned();
        }
        Ok(())
    }
}

macro_rules! decode_integer {
    ($($rust:ty as $go:literal),*) => {
        $(impl Decode for $rust {
            fn go_type() -> Cow<'static, str> {
                Cow::Borrowed($go)
            }

            fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
                if !reader.null() {
                    *self = reader.integer($go)?;
                }
                Ok(())
            }
        })*
    };
}

decode_integer!(i32 as "int32", i64 as "int64", u16 as "uint16", u64 as "uint64");

impl<T: Decode> Decode for Option<T> {
    fn go_type() -> Cow<'static, str> {
        T::go_type()
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if reader.null() {
            *self = None;
            return Ok(());
        }
        self.get_or_insert_default().decode(reader)
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn go_type() -> Cow<'static, str> {
        Cow::Owned(format!("[]{}", T::go_type()))
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.clear();
        if reader.null() {
            return Ok(());
        }
        reader.array(&Self::go_type(), |reader| {
            let mut element = T::default();
            element.decode(reader)?;
            self.push(element);
            Ok(())
        })
    }
}

impl<T: Decode> Decode for BTreeMap<String, T> {
    fn go_type() -> Cow<'static, str> {
        Cow::Owned(format!("map[string]{}", T::go_type()))
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if reader.null() {
            self.clear();
            return Ok(());
        }
        reader.object(&Self::go_type(), |reader, key| {
            let mut value = T::default();
            value.decode(reader)?;
            self.insert(key.to_owned(), value);
            Ok(())
        })
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
