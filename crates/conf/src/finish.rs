//! From settings to options: defaults, and the checks that concern several keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidelock_auth::{AccountLimits, AuthSpec, GLOBAL_ACCOUNT, Permissions, SYSTEM_ACCOUNT, UserSpec, Users};

use crate::duration;
use crate::error::LoadError;
use crate::file::{AccountSettings, AuthSettings, ClusterSettings, Settings, UserSettings};
use crate::options::{
    AccountOptions, ClusterOptions, ConfigFile, HostPort, JetStreamLimits, JetStreamOptions, MonitorOptions,
    Options, RouteCredentials,
};

const CLIENT_PORT: u16 = 4222;
const ANY_HOST: &str = "0.0.0.0";
const PING_INTERVAL: Duration = Duration::from_secs(120);
const ROUTE_PING_INTERVAL_MAX: Duration = Duration::from_secs(30);
const PING_MAX: u32 = 2;
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
const LAME_DUCK_DURATION: Duration = Duration::from_secs(120);
const LAME_DUCK_GRACE_PERIOD: Duration = Duration::from_secs(10);
const AUTH_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_ERROR_REPORTS: u32 = 3600;
const RECONNECT_ERROR_REPORTS: u32 = 1;
const POOL_SIZE: u32 = 3;

/// Puts the defaults where nothing was given, and checks what concerns several keys.
///
/// # Errors
/// [`LoadError::Check`] or [`LoadError::Fatal`] with nats-server's text.
pub(crate) fn finish(settings: Settings, config_file: Option<ConfigFile>) -> Result<Options, LoadError> {
    check(&settings).map_err(LoadError::Check)?;
    let jetstream = jetstream(&settings)?;
    let accounts = accounts(&settings, jetstream.is_some())?;
    let users = users(&settings, &accounts).map_err(LoadError::Check)?;
    let host = settings.host.unwrap_or_else(|| ANY_HOST.to_owned());
    let monitor = settings.http_port.map(|port| MonitorOptions {
        listen: HostPort::new(settings.http_host.unwrap_or_else(|| host.clone()), port),
        base_path: format!(
            "/{}",
            settings.http_base_path.unwrap_or_default().trim_matches('/')
        ),
    });
    let ping_interval = settings.ping_interval.unwrap_or(PING_INTERVAL);
    let ping_max = settings.ping_max.unwrap_or(PING_MAX);
    let write_deadline = settings.write_deadline.unwrap_or(WRITE_DEADLINE);
    let cluster_name = settings.cluster.name.clone();
    let cluster = cluster(settings.cluster, ping_interval, ping_max, write_deadline);
    Ok(Options {
        config_file,
        server_name: settings.server_name,
        server_tags: settings.server_tags,
        server_metadata: settings.server_metadata,
        listen: HostPort::new(host, settings.port.unwrap_or(CLIENT_PORT)),
        client_advertise: settings.client_advertise,
        monitor,
        log: settings.log,
        pid_file: settings.pid_file,
        ports_file_dir: settings.ports_file_dir,
        limits: settings.limits,
        ping_interval,
        ping_max,
        write_deadline,
        lame_duck_duration: settings.lame_duck_duration.unwrap_or(LAME_DUCK_DURATION),
        lame_duck_grace_period: settings.lame_duck_grace_period.unwrap_or(LAME_DUCK_GRACE_PERIOD),
        connect_error_reports: settings.connect_error_reports.unwrap_or(CONNECT_ERROR_REPORTS),
        reconnect_error_reports: settings
            .reconnect_error_reports
            .unwrap_or(RECONNECT_ERROR_REPORTS),
        users: Arc::new(users),
        auth_timeout: settings
            .auth
            .as_ref()
            .and_then(|auth| auth.timeout)
            .unwrap_or(AUTH_TIMEOUT),
        accounts,
        system_account: settings
            .system_account
            .unwrap_or_else(|| SYSTEM_ACCOUNT.to_owned()),
        system_events: !settings.no_system_account,
        cluster_name,
        cluster,
        jetstream,
    })
}

fn check(settings: &Settings) -> Result<(), String> {
    let duration = settings.lame_duck_duration.unwrap_or(LAME_DUCK_DURATION);
    let grace = settings.lame_duck_grace_period.unwrap_or(LAME_DUCK_GRACE_PERIOD);
    if grace >= duration {
        return Err(format!(
            "lame duck grace period ({}) should be strictly lower than lame duck duration ({})",
            duration::show(grace),
            duration::show(duration)
        ));
    }
    let (payload, pending) = (settings.limits.max_payload, settings.limits.max_pending);
    let pending = settings
        .negative_max_pending
        .map_or_else(|| i128::from(pending), i128::from);
    if i128::from(payload) > pending {
        return Err(format!(
            "max_payload ({payload}) cannot be higher than max_pending ({pending})"
        ));
    }
    let cluster = &settings.cluster;
    if cluster.port.is_none() && !cluster.routes.is_empty() {
        return Err("cluster routes require a cluster port to listen on".to_owned());
    }
    if cluster.user.is_none() && cluster.password.is_some() {
        return Err("cluster password requires a cluster user".to_owned());
    }
    if settings
        .auth
        .as_ref()
        .is_some_and(|auth| auth.user.is_none() && auth.password.is_some())
    {
        return Err("a password needs a user".to_owned());
    }
    if settings.jetstream.enabled && cluster.port.is_some() {
        if settings.server_name.is_none() {
            return Err("jetstream cluster requires `server_name` to be set".to_owned());
        }
        if cluster.name.is_none() {
            return Err("jetstream cluster requires `cluster.name` to be set".to_owned());
        }
    }
    Ok(())
}

fn jetstream(settings: &Settings) -> Result<Option<JetStreamOptions>, LoadError> {
    if !settings.jetstream.enabled {
        return Ok(None);
    }
    if settings.cluster.port.is_some() && settings.cluster.routes.is_empty() {
        return Err(LoadError::Fatal(
            "Can't start JetStream: JetStream cluster requires configured routes or solicited leafnode for the \
             system account"
                .to_owned(),
        ));
    }
    let mut options = settings.jetstream.options.clone();
    options.store_dir = options.store_dir.or_else(|| settings.store_dir.clone());
    Ok(Some(options))
}

/// `$G`, the system account, and the others.
fn accounts(settings: &Settings, jetstream: bool) -> Result<Vec<AccountOptions>, LoadError> {
    let system = settings.system_account.as_deref().unwrap_or(SYSTEM_ACCOUNT);
    let known = |name: &str| settings.accounts.iter().find(|account| account.name == name);
    let configured = known(system);
    if configured.is_none() && system != SYSTEM_ACCOUNT && system != GLOBAL_ACCOUNT {
        return Err(LoadError::Check(
            "error resolving system account: account missing".to_owned(),
        ));
    }
    if system == GLOBAL_ACCOUNT {
        return Err(LoadError::Check(format!(
            "system account can not be the global account {GLOBAL_ACCOUNT:?}"
        )));
    }
    if jetstream && configured.is_some_and(|account| account.jetstream.is_some()) {
        return Err(LoadError::Fatal(
            "Not allowed to enable JetStream on the system account".to_owned(),
        ));
    }
    // Without accounts of their own, all clients share JetStream in `$G`.
    let global_alone = settings.accounts.iter().all(|account| account.name == system);
    let global = AccountOptions {
        name: GLOBAL_ACCOUNT.to_owned(),
        users: settings
            .auth
            .iter()
            .flat_map(|auth| &auth.users)
            .map(|user| user.name.clone())
            .collect(),
        limits: AccountLimits::UNLIMITED,
        jetstream: global_alone.then(JetStreamLimits::default),
    };
    let empty = AccountSettings {
        name: system.to_owned(),
        ..AccountSettings::default()
    };
    let others = settings.accounts.iter().filter(|account| account.name != system);
    let configured = std::iter::once(configured.unwrap_or(&empty))
        .chain(others)
        .map(|account| AccountOptions {
            name: account.name.clone(),
            users: account.users.iter().map(|user| user.name.clone()).collect(),
            limits: account.limits,
            jetstream: account.jetstream.clone(),
        });
    Ok(std::iter::once(global).chain(configured).collect())
}

fn users(settings: &Settings, accounts: &[AccountOptions]) -> Result<Users, String> {
    let system = settings.system_account.as_deref().unwrap_or(SYSTEM_ACCOUNT);
    let nothing = AuthSettings::default();
    let auth = settings.auth.as_ref().unwrap_or(&nothing);
    let own = auth
        .users
        .iter()
        .map(|user| spec(user, GLOBAL_ACCOUNT, auth.permissions.as_ref()));
    let of_accounts = settings.accounts.iter().flat_map(|account| {
        let in_account = |user| spec(user, &account.name, account.permissions.as_ref());
        account.users.iter().map(in_account)
    });
    let limits: BTreeMap<_, _> = accounts
        .iter()
        .map(|account| (account.name.clone(), account.limits))
        .collect();
    let only_system = settings.accounts.iter().all(|account| account.name == system);
    let password = auth
        .password
        .clone()
        .unwrap_or_else(|| tidelock_auth::Password::new(""));
    let spec = AuthSpec {
        users: own.chain(of_accounts).collect(),
        single_user: auth.user.clone().map(|user| (user, password)),
        single_permissions: auth.permissions.clone().unwrap_or_default(),
        token: auth.token.clone(),
        no_auth_user: settings.no_auth_user.clone(),
        open_global_account: settings.auth.is_none() && only_system,
        limits,
    };
    Users::new(spec).map_err(|error| error.to_string())
}

fn spec(user: &UserSettings, account: &str, default: Option<&Arc<Permissions>>) -> UserSpec {
    let permissions = user.permissions.as_ref().or(default).cloned().unwrap_or_default();
    UserSpec {
        name: user.name.clone(),
        password: user.password.clone(),
        account: account.to_owned(),
        permissions,
        connection_types: user.connection_types,
    }
}

fn cluster(
    cluster: ClusterSettings,
    ping_interval: Duration,
    ping_max: u32,
    write_deadline: Duration,
) -> Option<ClusterOptions> {
    let port = cluster.port?;
    let password = cluster
        .password
        .unwrap_or_else(|| tidelock_auth::Password::new(""));
    Some(ClusterOptions {
        listen: HostPort::new(cluster.host.unwrap_or_else(|| ANY_HOST.to_owned()), port),
        credentials: cluster.user.map(|user| RouteCredentials { user, password }),
        auth_timeout: cluster.auth_timeout.unwrap_or(AUTH_TIMEOUT),
        routes: cluster.routes,
        advertise: cluster.advertise,
        no_advertise: cluster.no_advertise,
        pool_size: cluster.pool_size.unwrap_or(POOL_SIZE),
        connect_retries: cluster.connect_retries,
        connect_backoff: cluster.connect_backoff,
        ping_interval: cluster
            .ping_interval
            .unwrap_or_else(|| ping_interval.min(ROUTE_PING_INTERVAL_MAX)),
        ping_max: cluster.ping_max.unwrap_or(ping_max),
        write_deadline: cluster.write_deadline.unwrap_or(write_deadline),
    })
}
