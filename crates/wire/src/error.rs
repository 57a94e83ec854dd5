//! What can be wrong with a client's input, what is said to the client about it, and what goes to the log.

use crate::quote::Quoted;

/// A verb whose arguments can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// PUB
    Pub,
    /// HPUB
    HeaderPub,
    /// SUB
    Sub,
    /// UNSUB
    Unsub,
}

impl Verb {
    /// The name that nats-server's log lines use, which operators search for.
    const fn log_name(self) -> &'static str {
        match self {
            Self::Pub => "processPub",
            Self::HeaderPub => "processHeaderPub",
            Self::Sub => "processSub",
            Self::Unsub => "processUnsub",
        }
    }
}

/// An input that ends the connection. The `Display` form is the text of the log line; [`ParseError::reply`] is what
/// the client is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// An unknown verb, an empty line, or something else than CRLF after a payload.
    #[error("Client parser ERROR, proto='{snippet}'...")]
    UnknownOperation {
        /// The first bytes of the offending input, quoted.
        snippet: String,
    },
    /// The arguments of a control line are longer than the limit.
    #[error("maximum control line exceeded")]
    ControlLine,
    /// A publish announces more bytes than the limit.
    #[error("maximum payload exceeded: {size} vs {max}")]
    MaxPayload {
        /// Bytes of header and payload, as announced.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// Wrong number of arguments.
    #[error("{} Parse Error: {args}", verb.log_name())]
    Arguments {
        /// The verb.
        verb: Verb,
        /// Its arguments, quoted.
        args: String,
    },
    /// The size of a PUB is not a number.
    #[error("processPub Bad or Missing Size: {args}")]
    Size {
        /// The arguments, quoted.
        args: String,
    },
    /// The header size of an HPUB is not a number.
    #[error("processHeaderPub Bad or Missing Header Size: {args}")]
    HeaderSize {
        /// The arguments, quoted.
        args: String,
    },
    /// The total size of an HPUB is not a number.
    #[error("processHeaderPub Bad or Missing Total Size: {args}")]
    TotalSize {
        /// The arguments, quoted.
        args: String,
    },
    /// The header of an HPUB is larger than the whole. (The spelling is nats-server's.)
    #[error("processHeaderPub Header Size larger then TotalSize: {args}")]
    HeaderLargerThanTotal {
        /// The arguments, quoted.
        args: String,
    },
}

impl ParseError {
    /// The text between the quotes of the -ERR line, or nothing where the connection is closed in silence.
    #[must_use]
    pub const fn reply(&self) -> Option<&'static str> {
        match self {
            Self::UnknownOperation { .. } => Some("Unknown Protocol Operation"),
            Self::ControlLine => Some("maximum control line exceeded"),
            Self::MaxPayload { .. } => Some("Maximum Payload Violation"),
            Self::Arguments { .. }
            | Self::Size { .. }
            | Self::HeaderSize { .. }
            | Self::TotalSize { .. }
            | Self::HeaderLargerThanTotal { .. } => None,
        }
    }

    /// Input that is no message of the protocol, by its first bytes.
    #[must_use]
    pub fn unknown_operation(input: &[u8]) -> Self {
        /// Enough to recognise what was sent; payloads do not belong in a log.
        const SNIPPET_BYTES_MAX: usize = 32;
        let snippet = input.get(..SNIPPET_BYTES_MAX).unwrap_or(input);
        Self::UnknownOperation {
            snippet: Quoted(snippet).to_string(),
        }
    }

    pub(crate) fn arguments(verb: Verb, args: &[u8]) -> Self {
        Self::Arguments {
            verb,
            args: Quoted(args).to_string(),
        }
    }
}
