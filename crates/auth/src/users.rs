//! Users and the order in which credentials are tried.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{GLOBAL_ACCOUNT, Password, Permissions, constant_time_eq};

/// How a client is connected; users may be bound to some of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionType {
    /// The client protocol over TCP or TLS.
    Standard,
    /// The client protocol over WebSocket.
    WebSocket,
    /// A leafnode.
    Leafnode,
    /// A leafnode over WebSocket.
    LeafnodeWs,
    /// MQTT.
    Mqtt,
    /// MQTT over WebSocket.
    MqttWs,
    /// A connection inside the process.
    InProcess,
}

impl ConnectionType {
    const ALL: [(&'static str, Self); 7] = [
        ("STANDARD", Self::Standard),
        ("WEBSOCKET", Self::WebSocket),
        ("LEAFNODE", Self::Leafnode),
        ("LEAFNODE_WS", Self::LeafnodeWs),
        ("MQTT", Self::Mqtt),
        ("MQTT_WS", Self::MqttWs),
        ("IN_PROCESS", Self::InProcess),
    ];

    /// The type of this name in `allowed_connection_types`, in any case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, kind)| *kind)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of [`ConnectionType`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionTypes(u8);

impl ConnectionTypes {
    /// Every type.
    pub const ALL: Self = Self(0x7f);
    /// No type.
    pub const NONE: Self = Self(0);

    /// This set with one more type.
    #[must_use]
    pub const fn with(self, kind: ConnectionType) -> Self {
        Self(self.0 | kind.bit())
    }

    /// Whether the set has this type.
    #[must_use]
    pub const fn contains(self, kind: ConnectionType) -> bool {
        self.0 & kind.bit() != 0
    }
}

impl Default for ConnectionTypes {
    fn default() -> Self {
        Self::ALL
    }
}

/// Limits of an account; -1 means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountLimits {
    /// Client connections, over the whole cluster.
    pub max_connections: i64,
    /// Subscriptions of each connection.
    pub max_subscriptions: i64,
    /// Bytes of a message.
    pub max_payload: i64,
    /// Leafnode connections.
    pub max_leafnodes: i64,
}

impl AccountLimits {
    /// No limit at all.
    pub const UNLIMITED: Self = Self {
        max_connections: -1,
        max_subscriptions: -1,
        max_payload: -1,
        max_leafnodes: -1,
    };
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

/// A user as it is configured.
#[derive(Clone, Debug)]
pub struct UserSpec {
    /// Name; unique over all accounts.
    pub name: String,
    /// Password, plain or bcrypt.
    pub password: Password,
    /// Account the user is bound to.
    pub account: String,
    /// What the user may do; the account's default permissions are already worked in.
    pub permissions: Arc<Permissions>,
    /// How the user may connect.
    pub connection_types: ConnectionTypes,
}

/// Everything that decides a log-in.
#[derive(Clone, Debug, Default)]
pub struct AuthSpec {
    /// Users of `authorization.users` (in `$G`) and of all accounts.
    pub users: Vec<UserSpec>,
    /// The single `user` and `password` of the `authorization` block; bound to `$G`.
    pub single_user: Option<(String, Password)>,
    /// The single `token` of the `authorization` block; bound to `$G`.
    pub token: Option<Password>,
    /// The user assumed for clients without credentials.
    pub no_auth_user: Option<String>,
    /// Clients without credentials are let into `$G` although users exist, because only the system account has any.
    pub open_global_account: bool,
    /// Limits by account; an account that is not named has none.
    pub limits: BTreeMap<String, AccountLimits>,
}

/// A specification that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// Two users have one name.
    #[error("Duplicate user {0:?} detected")]
    Duplicate(String),
    /// `no_auth_user` names nobody.
    #[error(
        "no_auth_user: {0:?} not present as user or nkey in authorization block or account configuration"
    )]
    NoAuthUserMissing(String),
}

/// What a client sent in CONNECT. Absent and empty are the same.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// `user`.
    pub user: &'a str,
    /// `pass`.
    pub pass: &'a str,
    /// `auth_token`.
    pub token: &'a str,
    /// `nkey`, `sig` or `jwt` was sent; no such user can be configured, so these never match.
    pub other: bool,
    /// How the client is connected.
    pub connection: ConnectionType,
}

impl Credentials<'_> {
    /// Whether nothing at all was sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.user.is_empty() && self.pass.is_empty() && self.token.is_empty() && !self.other
    }
}

/// Who a client is, once it is let in.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Account.
    pub account: Arc<str>,
    /// User name; empty where log-in needs none, `[REDACTED]`-safe (a token is never shown).
    pub user: Arc<str>,
    /// What it may do.
    pub permissions: Arc<Permissions>,
    /// Limits of its account.
    pub limits: AccountLimits,
}

/// The outcome of a log-in attempt.
#[derive(Debug)]
pub enum Verdict {
    /// Let in.
    Accepted(Identity),
    /// Refused: `-ERR 'Authorization Violation'`.
    Refused,
    /// The password is bcrypt: [`PasswordCheck::run`] decides, and may take long; run it off the worker.
    Slow(PasswordCheck),
}

/// A password check that takes bcrypt's time. It owns what it needs and may move to another thread.
#[derive(Debug)]
pub struct PasswordCheck {
    stored: Password,
    given: Password,
    identity: Identity,
}

impl PasswordCheck {
    /// Runs the check: the identity, or `None` if the password is wrong.
    #[must_use]
    pub fn run(self) -> Option<Identity> {
        self.stored
            .verify(self.given.expose().as_bytes())
            .then_some(self.identity)
    }
}

/// All users, prepared for look-up. Built once per configuration.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<Arc<str>, User>,
    single_user: Option<(Arc<str>, Password)>,
    token: Option<Password>,
    no_auth_user: Option<Arc<str>>,
    open_global_account: bool,
    global: Identity,
}

#[derive(Debug)]
struct User {
    password: Password,
    connection_types: ConnectionTypes,
    identity: Identity,
}

impl Users {
    /// Prepares a specification.
    ///
    /// # Errors
    /// [`UserError::Duplicate`] for two users of one name, [`UserError::NoAuthUserMissing`] for a `no_auth_user`
    /// that is not configured.
    pub fn new(spec: AuthSpec) -> Result<Self, UserError> {
        let limits_of = |account: &str| spec.limits.get(account).copied().unwrap_or_default();
        let mut users = BTreeMap::new();
        for user in spec.users {
            let name: Arc<str> = user.name.as_str().into();
            let identity = Identity {
                limits: limits_of(&user.account),
                account: user.account.into(),
                user: Arc::clone(&name),
                permissions: user.permissions,
            };
            let entry = User {
                password: user.password,
                connection_types: user.connection_types,
                identity,
            };
            if users.insert(name, entry).is_some() {
                return Err(UserError::Duplicate(user.name));
            }
        }
        let global = Identity {
            account: GLOBAL_ACCOUNT.into(),
            user: "".into(),
            permissions: Arc::new(Permissions::unrestricted()),
            limits: limits_of(GLOBAL_ACCOUNT),
        };
        if let Some(name) = &spec.no_auth_user {
            let single = spec.single_user.as_ref().is_some_and(|(user, _)| user == name);
            if !single && !users.contains_key(name.as_str()) {
                return Err(UserError::NoAuthUserMissing(name.clone()));
            }
        }
        Ok(Self {
            users,
            single_user: spec.single_user.map(|(name, password)| (name.into(), password)),
            token: spec.token,
            no_auth_user: spec.no_auth_user.map(Into::into),
            open_global_account: spec.open_global_account,
            global,
        })
    }

    /// Whether INFO says `auth_required`.
    #[must_use]
    pub fn required(&self) -> bool {
        !self.users.is_empty() || self.single_user.is_some() || self.token.is_some()
    }

    /// Whether some password or token is stored as plain text (worth a warning at start).
    #[must_use]
    pub fn has_plain_passwords(&self) -> bool {
        let plain = |password: &Password| !password.is_empty() && !password.is_slow();
        self.users.values().any(|user| plain(&user.password))
            || self
                .single_user
                .as_ref()
                .is_some_and(|(_, password)| plain(password))
            || self.token.as_ref().is_some_and(plain)
    }

    /// Decides a log-in. The order is that of nats-server: no authentication configured, user by name, no
    /// credentials and `no_auth_user`, the open global account, the single token, the single user.
    #[must_use]
    pub fn authenticate(&self, given: &Credentials<'_>) -> Verdict {
        if !self.required() {
            return Verdict::Accepted(self.global.clone());
        }
        if given.is_empty() {
            return self.anonymous(given.connection);
        }
        if given.other {
            return Verdict::Refused;
        }
        if let Some(user) = self.users.get(given.user) {
            return Self::check_user(user, given);
        }
        if let Some(token) = &self.token {
            return check(token, given.token, self.global.clone());
        }
        match &self.single_user {
            Some((name, password)) if constant_time_eq(name.as_bytes(), given.user.as_bytes()) => check(
                password,
                given.pass,
                Identity {
                    user: Arc::clone(name),
                    ..self.global.clone()
                },
            ),
            _ => Verdict::Refused,
        }
    }

    fn anonymous(&self, connection: ConnectionType) -> Verdict {
        if let Some(name) = &self.no_auth_user {
            return match self.users.get(name) {
                Some(user) if user.connection_types.contains(connection) => {
                    Verdict::Accepted(user.identity.clone())
                }
                Some(_) => Verdict::Refused,
                None => Verdict::Accepted(Identity {
                    user: Arc::clone(name),
                    ..self.global.clone()
                }),
            };
        }
        if self.open_global_account {
            Verdict::Accepted(self.global.clone())
        } else {
            Verdict::Refused
        }
    }

    fn check_user(user: &User, given: &Credentials<'_>) -> Verdict {
        if !user.connection_types.contains(given.connection) {
            return Verdict::Refused;
        }
        check(&user.password, given.pass, user.identity.clone())
    }
}

fn check(stored: &Password, given: &str, identity: Identity) -> Verdict {
    if stored.is_slow() {
        Verdict::Slow(PasswordCheck {
            stored: stored.clone(),
            given: Password::new(given),
            identity,
        })
    } else if stored.verify(given.as_bytes()) {
        Verdict::Accepted(identity)
    } else {
        Verdict::Refused
    }
}
