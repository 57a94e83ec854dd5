//! Why a connection ends.

/// Why a connection ends. What the client is told about it (if anything) is in the output already when a reason is
/// handed out; the worker flushes that output and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client closed.
    ClientClosed,
    /// No CONNECT in time.
    AuthenticationTimeout,
    /// Wrong credentials.
    AuthenticationFailure,
    /// Its credentials have expired.
    AuthenticationExpired,
    /// Its credentials were revoked.
    CredentialsRevoked,
    /// The client takes messages too slowly; nothing is flushed.
    SlowConsumerPendingBytes,
    /// A write was blocked for too long; nothing is flushed.
    SlowConsumerWriteDeadline,
    /// The socket failed.
    WriteError,
    /// The socket failed.
    ReadError,
    /// The client sent -ERR.
    ParseError,
    /// The client does not answer PING.
    StaleConnection,
    /// Input that the protocol does not allow.
    ProtocolViolation,
    /// CONNECT names an unknown protocol level.
    BadClientProtocolVersion,
    /// The client meant another port.
    IncorrectPort,
    /// The account has its connections.
    MaxAccountConnectionsExceeded,
    /// The server has its connections.
    MaxConnectionsExceeded,
    /// A publish larger than the limit.
    MaxPayloadExceeded,
    /// A control line longer than the limit.
    MaxControlLineExceeded,
    /// More subscriptions than a limit that was lowered.
    MaxSubscriptionsExceeded,
    /// The server stops.
    ServerShutdown,
    /// The account is gone.
    MissingAccount,
    /// HPUB without headers having been agreed on.
    MessageHeaderViolation,
    /// `no_responders` without `headers`.
    NoRespondersRequiresHeaders,
    /// An operator closed it.
    Kicked,
}

impl CloseReason {
    /// The text of connz and of disconnect events.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::ClientClosed => "Client Closed",
            Self::AuthenticationTimeout => "Authentication Timeout",
            Self::AuthenticationFailure => "Authentication Failure",
            Self::AuthenticationExpired => "Authentication Expired",
            Self::CredentialsRevoked => "Credentials Revoked",
            Self::SlowConsumerPendingBytes => "Slow Consumer (Pending Bytes)",
            Self::SlowConsumerWriteDeadline => "Slow Consumer (Write Deadline)",
            Self::WriteError => "Write Error",
            Self::ReadError => "Read Error",
            Self::ParseError => "Parse Error",
            Self::StaleConnection => "Stale Connection",
            Self::ProtocolViolation => "Protocol Violation",
            Self::BadClientProtocolVersion => "Bad Client Protocol Version",
            Self::IncorrectPort => "Incorrect Port",
            Self::MaxAccountConnectionsExceeded => "Maximum Account Connections Exceeded",
            Self::MaxConnectionsExceeded => "Maximum Connections Exceeded",
            Self::MaxPayloadExceeded => "Maximum Message Payload Exceeded",
            Self::MaxControlLineExceeded => "Maximum Control Line Exceeded",
            Self::MaxSubscriptionsExceeded => "Maximum Subscriptions Exceeded",
            Self::ServerShutdown => "Server Shutdown",
            Self::MissingAccount => "Missing Account",
            Self::MessageHeaderViolation => "Message Header Violation",
            Self::NoRespondersRequiresHeaders => "No Responders Requires Headers",
            Self::Kicked => "Kicked",
        }
    }

    /// Whether what is still queued should be sent before the socket is closed.
    #[must_use]
    pub const fn flushes(self) -> bool {
        !matches!(
            self,
            Self::SlowConsumerPendingBytes
                | Self::SlowConsumerWriteDeadline
                | Self::WriteError
                | Self::ReadError
        )
    }
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}
