//! Codecs of the wire: the client protocol (parser, CONNECT, INFO, MSG lines, header blocks) and the framing of
//! cluster links.
//!
//! Everything here turns bytes into borrowed views and back. Nothing holds a connection's state beyond what is
//! needed to go on in the middle of an input, and nothing allocates but for errors, CONNECT and INFO, which are
//! rare. What the views mean (who may publish, what is subscribed) is for `session` to say.

mod client;
mod connect;
mod error;
pub mod header;
mod info;
pub mod link;
mod quote;
mod text;

pub use client::{Event, Limits, Parsed, PubLine, parse, parse_publish_line};
pub use connect::{Connect, ConnectError, is_json};
pub use error::{ParseError, Verb};
pub use info::Info;
pub use quote::Quoted;
pub use text::{DECIMAL_DIGITS_MAX, Decimal, push_decimal};

/// Most digits that a size on a control line may have; longer ones are not numbers (nats-server 2.15).
pub const SIZE_DIGITS_MAX: usize = 9;
