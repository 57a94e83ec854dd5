//! What the inbound half asks of its worker.

use std::fmt;
use std::sync::Arc;

use tidelock_auth::Permissions;
use tidelock_base::AccountId;
use tidelock_wire::{Connect, Info};

use crate::outbound::Outbound;
use crate::pool::ChunkPool;
use crate::publish::Publish;
use crate::subscription::SubSlot;

/// The worker, as the inbound half of a connection sees it. Calls come in the order of the input; each has taken
/// effect when it returns, so that a SUB is seen by the publish behind it.
pub trait Host {
    /// This connection's own output, and the pool to fill it from.
    fn outbound(&mut self) -> (&mut Outbound, &mut ChunkPool);

    /// Decides about a CONNECT. Called without credentials ([`Connect::default`]) when a client starts without
    /// CONNECT and [`crate::Settings::connect_optional`] is set. The host remembers the identity that it gives.
    fn authenticate(&mut self, connect: &Connect) -> Authentication;

    /// A publish, with its permission checked: to be routed and delivered.
    fn publish(&mut self, message: &Publish<'_>);

    /// The subscription in `slot` is new and is to enter interest.
    fn subscribed(&mut self, slot: SubSlot);

    /// The subscription in `slot` ends and is to leave interest. It can still be read; it is gone after the call.
    fn unsubscribed(&mut self, slot: SubSlot);

    /// The first PONG after CONNECT is out; the INFO to send behind it. Only asked for clients that take INFO at any
    /// time (protocol 1).
    fn first_pong(&mut self) -> Option<Info>;

    /// A line for the server log, without the prefix that names the connection. Rare.
    fn log(&mut self, level: LogLevel, text: fmt::Arguments<'_>);
}

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// `[ERR]`
    Error,
    /// `[WRN]`
    Warn,
    /// `[DBG]`
    Debug,
}

/// The answer to a CONNECT.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Let in.
    Accepted(Identity),
    /// Not let in.
    Refused(AuthFailure),
    /// The check takes time (bcrypt). The connection reads nothing more until [`crate::Inbound::authenticated`].
    Pending,
}

/// Who a client is, once it is let in.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Account.
    pub account: AccountId,
    /// Name of the account.
    pub account_name: Arc<str>,
    /// Whether it is the system account.
    pub is_system: bool,
    /// User name; empty where log-in needs none.
    pub user: Arc<str>,
    /// What it may do; `None` for everything.
    pub permissions: Option<Arc<Permissions>>,
    /// Most bytes of header and payload, if lower than the server's.
    pub max_payload: Option<usize>,
    /// Most subscriptions, if lower than the server's.
    pub max_subscriptions: Option<usize>,
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// Wrong or missing credentials.
    Violation,
    /// The account has all the connections it may have.
    AccountConnectionsExceeded,
    /// The account cannot be used.
    AccountRegistration,
}

impl AuthFailure {
    /// The text of the -ERR line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Violation => "Authorization Violation",
            Self::AccountConnectionsExceeded => "maximum account active connections exceeded",
            Self::AccountRegistration => "Failed Account Registration",
        }
    }
}
