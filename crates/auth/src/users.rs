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
    /// What the holder of the single user or token may do.
    pub single_permissions: Arc<Permissions>,
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
    /// `no_auth_user` is set, but there are no users.
    #[error("no_auth_user: {0:?} present, but users/nkeys are not defined")]
    NoAuthUserWithoutUsers(String),
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
    /// User name; empty where log-in needs none, and with a token, which is never shown.
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
    no_auth_user: Option<(ConnectionTypes, Identity)>,
    open_global_account: bool,
    global: Identity,
    single: Identity,
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
    /// [`UserError::Duplicate`] for two users of one name, [`UserError::NoAuthUserMissing`] and
    /// [`UserError::NoAuthUserWithoutUsers`] for a `no_auth_user` that is not configured.
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
        let single = Identity {
            permissions: spec.single_permissions,
            ..global.clone()
        };
        let no_auth_user = match spec.no_auth_user {
            Some(name) if users.is_empty() => return Err(UserError::NoAuthUserWithoutUsers(name)),
            Some(name) => match users.get(name.as_str()) {
                Some(user) => Some((user.connection_types, user.identity.clone())),
                None => return Err(UserError::NoAuthUserMissing(name)),
            },
            None => None,
        };
        Ok(Self {
            users,
            single_user: spec.single_user.map(|(name, password)| (name.into(), password)),
            token: spec.token,
            no_auth_user,
            open_global_account: spec.open_global_account,
            global,
            single,
        })
    }

    /// Whether INFO says `auth_required`.
    #[must_use]
    pub fn required(&self) -> bool {
        !self.users.is_empty() || self.single_user.is_some() || self.token.is_some()
    }

    /// Whether those who send nothing are let in as a user that the configuration names.
    #[must_use]
    pub const fn has_no_auth_user(&self) -> bool {
        self.no_auth_user.is_some()
    }

    /// Whether there is one token for everybody.
    #[must_use]
    pub const fn has_token(&self) -> bool {
        self.token.is_some()
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
            return check(token, given.token, self.single.clone());
        }
        match &self.single_user {
            Some((name, password)) if constant_time_eq(name.as_bytes(), given.user.as_bytes()) => check(
                password,
                given.pass,
                Identity {
                    user: Arc::clone(name),
                    ..self.single.clone()
                },
            ),
            _ => Verdict::Refused,
        }
    }

    fn anonymous(&self, connection: ConnectionType) -> Verdict {
        match &self.no_auth_user {
            Some((types, identity)) if types.contains(connection) => Verdict::Accepted(identity.clone()),
            Some(_) => Verdict::Refused,
            None if self.open_global_account => Verdict::Accepted(self.global.clone()),
            None => Verdict::Refused,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PermissionsSpec;

    const NOTHING: Credentials<'static> = Credentials {
        user: "",
        pass: "",
        token: "",
        other: false,
        connection: ConnectionType::Standard,
    };

    fn with_user(user: &'static str, pass: &'static str) -> Credentials<'static> {
        Credentials {
            user,
            pass,
            ..NOTHING
        }
    }

    fn user(name: &str, password: &str, account: &str) -> UserSpec {
        UserSpec {
            name: name.to_owned(),
            password: Password::new(password),
            account: account.to_owned(),
            permissions: Arc::default(),
            connection_types: ConnectionTypes::ALL,
        }
    }

    /// `account/user` of whoever is let in, or a word for the other outcomes.
    fn outcome(users: &Users, given: Credentials<'_>) -> String {
        match users.authenticate(&given) {
            Verdict::Accepted(identity) => format!("{}/{}", identity.account, identity.user),
            Verdict::Refused => "refused".to_owned(),
            Verdict::Slow(check) => match check.run() {
                Some(identity) => format!("slow {}/{}", identity.account, identity.user),
                None => "slow refused".to_owned(),
            },
        }
    }

    #[test]
    fn without_configuration_everybody_is_in_the_global_account() {
        let users = Users::new(AuthSpec::default()).unwrap();
        assert!(!users.required());
        assert_eq!(outcome(&users, NOTHING), "$G/");
        assert_eq!(outcome(&users, with_user("any", "thing")), "$G/");
    }

    #[test]
    fn users_are_bound_to_their_accounts_and_limits() {
        let limits = AccountLimits {
            max_payload: 10,
            ..AccountLimits::UNLIMITED
        };
        let spec = AuthSpec {
            users: vec![user("a", "x", "A"), user("b", "y", "$G")],
            limits: [("A".to_owned(), limits)].into(),
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert!(users.required());
        assert_eq!(outcome(&users, with_user("a", "x")), "A/a");
        assert_eq!(outcome(&users, with_user("b", "y")), "$G/b");
        for wrong in [
            with_user("a", "y"),
            with_user("c", "x"),
            with_user("", "x"),
            with_user("a", ""),
            NOTHING,
        ] {
            assert_eq!(outcome(&users, wrong), "refused");
        }
        let Verdict::Accepted(identity) = users.authenticate(&with_user("a", "x")) else {
            panic!("refused")
        };
        assert_eq!(identity.limits.max_payload, 10);
        assert_eq!(identity.limits.max_connections, -1);
    }

    #[test]
    fn a_key_or_jwt_is_never_taken_as_anonymous() {
        let spec = AuthSpec {
            users: vec![user("a", "x", "A")],
            no_auth_user: Some("a".to_owned()),
            open_global_account: true,
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert_eq!(
            outcome(
                &users,
                Credentials {
                    other: true,
                    ..NOTHING
                }
            ),
            "refused"
        );
        assert_eq!(outcome(&users, NOTHING), "A/a");
    }

    #[test]
    fn no_auth_user_is_for_those_who_send_nothing() {
        let spec = AuthSpec {
            users: vec![user("a", "x", "A"), user("b", "y", "B")],
            no_auth_user: Some("a".to_owned()),
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert_eq!(outcome(&users, NOTHING), "A/a");
        assert_eq!(outcome(&users, with_user("b", "y")), "B/b");
        assert_eq!(outcome(&users, with_user("b", "x")), "refused");
        assert_eq!(
            outcome(
                &users,
                Credentials {
                    token: "t",
                    ..NOTHING
                }
            ),
            "refused"
        );
    }

    #[test]
    fn no_auth_user_must_exist() {
        let missing = AuthSpec {
            users: vec![user("a", "x", "A")],
            no_auth_user: Some("q".to_owned()),
            ..AuthSpec::default()
        };
        assert_eq!(
            Users::new(missing).unwrap_err(),
            UserError::NoAuthUserMissing("q".to_owned())
        );
        let alone = AuthSpec {
            single_user: Some(("a".to_owned(), Password::new("b"))),
            no_auth_user: Some("a".to_owned()),
            ..AuthSpec::default()
        };
        assert_eq!(
            Users::new(alone).unwrap_err().to_string(),
            "no_auth_user: \"a\" present, but users/nkeys are not defined"
        );
    }

    #[test]
    fn an_admin_of_the_system_account_does_not_close_the_server() {
        let spec = AuthSpec {
            users: vec![user("admin", "x", "$SYS")],
            open_global_account: true,
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert!(users.required());
        assert_eq!(outcome(&users, NOTHING), "$G/");
        assert_eq!(outcome(&users, with_user("admin", "x")), "$SYS/admin");
        assert_eq!(outcome(&users, with_user("admin", "y")), "refused");
        assert_eq!(outcome(&users, with_user("other", "")), "refused");
    }

    #[test]
    fn a_token_is_taken_from_the_token_field_alone() {
        let spec = AuthSpec {
            token: Some(Password::new("tt")),
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert_eq!(
            outcome(
                &users,
                Credentials {
                    token: "tt",
                    ..NOTHING
                }
            ),
            "$G/"
        );
        assert_eq!(
            outcome(
                &users,
                Credentials {
                    token: "tt",
                    ..with_user("x", "y")
                }
            ),
            "$G/"
        );
        assert_eq!(outcome(&users, with_user("tt", "")), "refused");
        assert_eq!(outcome(&users, with_user("", "tt")), "refused");
        assert_eq!(outcome(&users, NOTHING), "refused");
    }

    #[test]
    fn the_single_user_has_the_block_s_permissions() {
        let rules = PermissionsSpec {
            publish: Some(crate::SubjectRules::default()),
            ..PermissionsSpec::default()
        };
        let spec = AuthSpec {
            single_user: Some(("a".to_owned(), Password::new("b"))),
            single_permissions: Arc::new(Permissions::new(rules.clone()).unwrap()),
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        let Verdict::Accepted(identity) = users.authenticate(&with_user("a", "b")) else {
            panic!("refused")
        };
        assert_eq!(identity.permissions.spec(), &rules);
        assert_eq!(outcome(&users, with_user("a", "c")), "refused");
        assert_eq!(outcome(&users, with_user("c", "b")), "refused");
        assert_eq!(outcome(&users, NOTHING), "refused");
    }

    #[test]
    fn bcrypt_is_left_to_the_caller() {
        let hash = bcrypt::hash("pw", 4).unwrap();
        let spec = AuthSpec {
            users: vec![user("a", &hash, "A")],
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert!(!users.has_plain_passwords());
        assert_eq!(outcome(&users, with_user("a", "pw")), "slow A/a");
        assert_eq!(outcome(&users, with_user("a", "pW")), "slow refused");
    }

    #[test]
    fn connection_types_bind_a_user() {
        let mut bound = user("a", "x", "A");
        bound.connection_types = ConnectionTypes::NONE.with(ConnectionType::Mqtt);
        let spec = AuthSpec {
            users: vec![bound],
            no_auth_user: Some("a".to_owned()),
            ..AuthSpec::default()
        };
        let users = Users::new(spec).unwrap();
        assert_eq!(outcome(&users, with_user("a", "x")), "refused");
        assert_eq!(outcome(&users, NOTHING), "refused");
        let mqtt = Credentials {
            connection: ConnectionType::Mqtt,
            ..with_user("a", "x")
        };
        assert_eq!(outcome(&users, mqtt), "A/a");
        assert_eq!(
            ConnectionType::parse("leafnode_ws"),
            Some(ConnectionType::LeafnodeWs)
        );
        assert_eq!(ConnectionType::parse("X"), None);
    }

    #[test]
    fn names_are_unique_over_all_accounts() {
        let spec = AuthSpec {
            users: vec![user("a", "x", "A"), user("a", "x", "B")],
            ..AuthSpec::default()
        };
        assert_eq!(
            Users::new(spec).unwrap_err().to_string(),
            "Duplicate user \"a\" detected"
        );
    }
}
