//! The enumerations of stream and consumer configurations, by their JSON strings.

use crate::json::{Decode, DecodeError, Kind, Reader, quoted};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// Declares an enumeration: its variants in the order of nats-server's numbering (the first is the default) and the
/// string of each.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_text:literal, $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[$first_doc])*
            #[default]
            $first,
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value, in the order of the declaration.
            pub const ALL: &[Self] = &[Self::$first, $(Self::$variant,)*];

            /// The JSON string.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$variant => $text,)*
                }
            }

            /// The value that is written as `text`, exactly.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }

            /// Whether this is the default.
            #[must_use]
            pub fn is_default(&self) -> bool {
                *self == Self::$first
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

wire_enum! {
    /// When a stream lets go of a message (`retention`).
    Retention {
        /// When a limit of the stream is reached.
        Limits = "limits",
        /// When each consumer that is interested in it has acknowledged it.
        Interest = "interest",
        /// When one consumer has acknowledged it.
        WorkQueue = "workqueue",
    }
}
wire_enum! {
    /// What happens to a message that would exceed a limit (`discard`).
    Discard {
        /// The oldest messages make room.
        Old = "old",
        /// The new message is refused.
        New = "new",
    }
}
wire_enum! {
    /// Where messages are kept (`storage`).
    Storage {
        /// On disk.
        File = "file",
        /// In memory.
        Memory = "memory",
    }
}
wire_enum! {
    /// Compression of the blocks of a file stream (`compression`).
    Compression {
        /// None.
        None = "none",
        /// S2.
        S2 = "s2",
    }
}
wire_enum! {
    /// Whether a publish is answered before it is durable (`persist_mode`).
    PersistMode {
        /// Durable first.
        Default = "default",
        /// Answered before the sync.
        Async = "async",
    }
}
wire_enum! {
    /// Where in the stream a consumer starts (`deliver_policy`).
    DeliverPolicy {
        /// With the first message.
        All = "all",
        /// With the last message.
        Last = "last",
        /// With the first message stored after the consumer was created.
        New = "new",
        /// At `opt_start_seq`.
        ByStartSequence = "by_start_sequence",
        /// At `opt_start_time`.
        ByStartTime = "by_start_time",
        /// With the last message of each subject.
        LastPerSubject = "last_per_subject",
    }
}
wire_enum! {
    /// What an acknowledgement covers (`ack_policy`).
    AckPolicy {
        /// Nothing is acknowledged.
        None = "none",
        /// The message and all before it.
        All = "all",
        /// The message.
        Explicit = "explicit",
        /// Everything up to the position that a flow control answer names; for streams that feed other streams.
        FlowControl = "flow_control",
    }
}
wire_enum! {
    /// Pace of delivery (`replay_policy`).
    ReplayPolicy {
        /// As fast as possible.
        Instant = "instant",
        /// As the messages were stored.
        Original = "original",
    }
}
wire_enum! {
    /// Who is served among the clients of a pull consumer (`priority_policy`, ADR-42).
    PriorityPolicy {
        /// All alike.
        None = "none",
        /// Requests with thresholds only above them.
        Overflow = "overflow",
        /// One pinned client.
        PinnedClient = "pinned_client",
        /// Lower priority numbers first.
        Prioritized = "prioritized",
    }
}
wire_enum! {
    /// What a consumer create request may do (`action`).
    ConsumerAction {
        /// Create, or update what exists.
        CreateOrUpdate = "",
        /// Create only.
        Create = "create",
        /// Update only.
        Update = "update",
    }
}

/// The refusal that most enumerations share: `can not unmarshal "\"foo\""`, the JSON value quoted once more.
fn can_not_unmarshal(raw: &str) -> DecodeError {
    DecodeError::new(format!("can not unmarshal {}", quoted(raw)))
}

/// The text between the quotes of a JSON string as it is written; `None` for other values.
fn inner(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Implements [`Decode`] by a function from the JSON value as it is written. These fields have decoders of their own
/// in nats-server, which see `null` too and refuse it.
macro_rules! decode_enum {
    ($name:ident as $go:literal, $read:expr) => {
        impl Decode for $name {
            fn go_type() -> Cow<'static, str> {
                Cow::Borrowed(concat!("server.", $go))
            }

            fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
                let read: fn(&str) -> Result<Self, DecodeError> = $read;
                *self = read(&reader.raw_text())?;
                Ok(())
            }
        }
    };
}

decode_enum!(Retention as "RetentionPolicy", |raw| {
    inner(raw).and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw))
});
decode_enum!(Storage as "StorageType", |raw| {
    inner(raw).and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw))
});
decode_enum!(AckPolicy as "AckPolicy", |raw| {
    inner(raw).and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw))
});
decode_enum!(ReplayPolicy as "ReplayPolicy", |raw| {
    inner(raw).and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw))
});
decode_enum!(Discard as "DiscardPolicy", |raw| {
    inner(raw)
        .map(str::to_ascii_lowercase)
        .and_then(|text| Self::from_text(&text))
        .ok_or_else(|| can_not_unmarshal(raw))
});
decode_enum!(PersistMode as "PersistModeType", |raw| match inner(raw) {
    Some("") => Ok(Self::Default),
    other => other.and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw)),
});
decode_enum!(DeliverPolicy as "DeliverPolicy", |raw| match inner(raw) {
    Some("undefined") => Ok(Self::All),
    other => other.and_then(Self::from_text).ok_or_else(|| can_not_unmarshal(raw)),
});
decode_enum!(PriorityPolicy as "PriorityPolicy", |raw| {
    inner(raw)
        .and_then(Self::from_text)
        .ok_or_else(|| DecodeError::new(format!("unknown priority policy: {raw}")))
});
decode_enum!(ConsumerAction as "ConsumerAction", |raw| {
    inner(raw)
        .and_then(Self::from_text)
        .ok_or_else(|| DecodeError::new(format!("unknown consumer action: {raw}")))
});

impl Decode for Compression {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("server.StoreCompression")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        // The decoder of nats-server reads a string of its own here, so that the text of a value of another kind
        // names no field, and `null` is the empty string.
        let text = match reader.kind() {
            Kind::String | Kind::Null => reader.raw_text(),
            other => {
                return Err(DecodeError::new(format!(
                    "json: cannot unmarshal {other} into Go value of type string"
                )));
            }
        };
        *self = inner(&text)
            .and_then(Self::from_text)
            .ok_or_else(|| DecodeError::new("unknown compression algorithm".to_owned()))?;
        Ok(())
    }
}
