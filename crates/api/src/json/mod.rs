//! JSON as Go writes and reads it: a strict reader with nats-server's error texts, and an encoder that renders like
//! Go's.

mod decode;
mod encode;
mod reader;
mod scan;

pub use decode::{Decode, decode_lenient, decode_optional, decode_strict, fuzz, is_empty_request};
pub(crate) use decode::{decodable, is_zero};
pub use encode::{to_json, to_json_pretty};
pub use reader::{DecodeError, Kind, Reader};
pub(crate) use scan::quoted;
