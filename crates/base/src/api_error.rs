//! An error of the JetStream API as it leaves on the wire.

use crate::ApiErrorCode;
use std::borrow::Cow;
use std::fmt;

/// The `error` object of an API response: `{"code":400,"err_code":10003,"description":"bad request"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Which error of the table; gives `code` and `err_code`.
    pub code: ApiErrorCode,
    /// The text with its placeholders filled in.
    pub description: Cow<'static, str>,
}

impl ApiError {
    /// An error whose text has no placeholder, or whose placeholder text is wanted as it is.
    #[must_use]
    pub const fn new(code: ApiErrorCode) -> Self {
        Self {
            code,
            description: Cow::Borrowed(code.template()),
        }
    }

    /// An error with each `{name}` of its template replaced, in order, by the given values.
    #[must_use]
    pub fn with(code: ApiErrorCode, values: &[&str]) -> Self {
        let mut text = String::new();
        let mut rest = code.template();
        let mut values = values.iter();
        while let Some((before, after)) = rest.split_once('{') {
            let Some((_, tail)) = after.split_once('}') else {
                break;
            };
            text.push_str(before);
            if let Some(value) = values.next() {
                text.push_str(value);
            }
            rest = tail;
        }
        text.push_str(rest);
        Self {
            code,
            description: Cow::Owned(text),
        }
    }

    /// An error of this code with a text of its own.
    pub fn text(code: ApiErrorCode, description: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            description: description.into(),
        }
    }
}

impl From<ApiErrorCode> for ApiError {
    fn from(code: ApiErrorCode) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.description, self.code.err_code())
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_order() {
        let e = ApiError::with(ApiErrorCode::StreamWrongLastSequence, &["7"]);
        assert_eq!(e.description, "wrong last sequence: 7");
        assert_eq!((e.code.code(), e.code.err_code()), (400, 10071));
    }

    #[test]
    fn codes_are_unique_and_found_by_number() {
        assert_eq!(
            crate::api_error_by_code(10059),
            Some(ApiErrorCode::StreamNotFound)
        );
        assert_eq!(crate::api_error_by_code(1), None);
    }
}
