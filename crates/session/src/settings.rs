//! What the configuration says about every client connection.

use std::time::Duration;

/// Limits and timers of a client connection; shared by all connections of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest arguments of a control line, in bytes.
    pub max_control_line: usize,
    /// Most bytes of header and payload of a publish; an identity may lower it.
    pub max_payload: usize,
    /// Most bytes that may wait to be sent; beyond it the client is a slow consumer.
    pub max_pending: usize,
    /// Most subscriptions of a connection; 0 means no limit. An identity may lower it.
    pub max_subscriptions: usize,
    /// Most tokens of a subscribed subject; 0 means no limit.
    pub max_subscription_tokens: usize,
    /// Time between PINGs.
    pub ping_interval: Duration,
    /// PINGs that may stay unanswered.
    pub ping_max: u32,
    /// Time for CONNECT if `auth_required`.
    pub auth_timeout: Duration,
    /// Time that a blocked write may last.
    pub write_deadline: Duration,
    /// Whether credentials are needed. Arms the auth timer.
    pub auth_required: bool,
    /// Whether a client that skips CONNECT is let in all the same: without authentication, or with `no_auth_user`.
    pub connect_optional: bool,
    /// Whether headers are supported (`no_header_support` turns it off).
    pub headers: bool,
}

impl Default for Settings {
    /// The defaults of nats-server without authentication.
    fn default() -> Self {
        Self {
            max_control_line: 4096,
            max_payload: 1024 * 1024,
            max_pending: 64 * 1024 * 1024,
            max_subscriptions: 0,
            max_subscription_tokens: 0,
            ping_interval: Duration::from_secs(120),
            ping_max: 2,
            auth_timeout: Duration::from_secs(2),
            write_deadline: Duration::from_secs(10),
            auth_required: false,
            connect_optional: true,
            headers: true,
        }
    }
}

/// Messages and bytes in one direction. Bytes count header and payload, not the lines around them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}
