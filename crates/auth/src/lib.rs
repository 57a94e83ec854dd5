//! Who may log in, and what they may do: users, passwords and tokens, permissions, account limits and the names
//! that are derived from hashes and keys.
//!
//! Everything here is a value that is built once from the checked configuration and then only read. A password
//! check can take a tenth of a second (bcrypt), so [`Users::authenticate`] hands such a check out as a value that
//! the caller may run elsewhere.

mod identity;
mod password;
mod permissions;
mod users;

pub use identity::{ServerKey, ServerKeyError, hash8};
pub use password::{Password, constant_time_eq};
pub use permissions::{
    Permissions, PermissionsError, PermissionsSpec, Responses, SubjectRules, SubscribeCheck,
};
pub use users::{
    AccountLimits, AuthSpec, ConnectionType, ConnectionTypes, Credentials, Identity, PasswordCheck,
    UserError, UserSpec, Users, Verdict,
};

/// The account of clients when none is configured, and of users outside of any account.
pub const GLOBAL_ACCOUNT: &str = "$G";
/// The account of the server's own events and requests, unless `system_account` names another.
pub const SYSTEM_ACCOUNT: &str = "$SYS";
