//! Flags, worked into the settings of the file: what is given on the command line wins.

use tidelock_auth::Password;

use crate::file::{AuthSettings, Settings};
use crate::flags::{Flag, Flags};
use crate::read::{parse_advertise, parse_url, unsupported};

/// Flags that Tidelock knows and does not have yet.
const UNSUPPORTED: &[(Flag, &str)] = &[
    (Flag::HttpsPort, "--https_port"),
    (Flag::Syslog, "--syslog"),
    (Flag::RemoteSyslog, "--remote_syslog"),
    (Flag::Tls, "--tls"),
    (Flag::TlsCert, "--tlscert"),
    (Flag::TlsKey, "--tlskey"),
    (Flag::TlsVerify, "--tlsverify"),
    (Flag::TlsCaCert, "--tlscacert"),
    (Flag::Profile, "--profile"),
];

/// Overrides settings with flags.
///
/// # Errors
/// What is wrong with the first flag that is.
pub(crate) fn apply(flags: &Flags, settings: &mut Settings) -> Result<(), String> {
    for (flag, name) in UNSUPPORTED {
        let off = flags.switch(*flag) == Some(false) || flags.integer(*flag) == Some(0);
        let given = flags.text(*flag).is_some() || flags.integer(*flag).is_some() || flags.is_on(*flag);
        if given && !off {
            return Err(unsupported(name));
        }
    }
    server(flags, settings)?;
    logging(flags, settings)?;
    authorization(flags, settings);
    cluster(flags, settings)
}

fn server(flags: &Flags, settings: &mut Settings) -> Result<(), String> {
    if let Some(host) = flags.text(Flag::Addr) {
        settings.host = Some(host.to_owned());
    }
    if let Some(port) = flags.integer(Flag::Port) {
        settings.port = port_of("-p", port)?;
    }
    if let Some(port) = flags.integer(Flag::HttpPort) {
        settings.http_port = port_of("-m", port)?;
    }
    if let Some(name) = flags.text(Flag::Name).filter(|name| !name.is_empty()) {
        if name.contains(' ') {
            return Err("server name cannot contain spaces".to_owned());
        }
        settings.server_name = Some(name.to_owned());
    }
    if let Some(file) = flags.text(Flag::Pid) {
        settings.pid_file = Some(file.to_owned());
    }
    if let Some(directory) = flags.text(Flag::PortsFileDir) {
        settings.ports_file_dir = Some(directory.to_owned());
    }
    if let Some(address) = flags
        .text(Flag::ClientAdvertise)
        .filter(|address| !address.is_empty())
    {
        settings.client_advertise = Some(parse_advertise(address)?);
    }
    if let Some(enabled) = flags.switch(Flag::JetStream) {
        settings.jetstream.enabled = enabled;
    }
    if let Some(directory) = flags
        .text(Flag::StoreDir)
        .filter(|directory| !directory.is_empty())
    {
        settings.store_dir = Some(directory.to_owned());
        settings.jetstream.options.store_dir = None;
    }
    Ok(())
}

/// A port: `None` for 0, which is the default, `Some(0)` for -1, any free one.
fn port_of(name: &str, value: i64) -> Result<Option<u16>, String> {
    match value {
        0 => Ok(None),
        -1 => Ok(Some(0)),
        _ => match u16::try_from(value) {
            Ok(port) => Ok(Some(port)),
            Err(_) => Err(format!("invalid port {value} for {name}, expected -1 to 65535")),
        },
    }
}

fn logging(flags: &Flags, settings: &mut Settings) -> Result<(), String> {
    let log = &mut settings.log;
    let both = flags.switch(Flag::DebugTrace);
    let all = flags.switch(Flag::DebugTraceVerbose);
    if let Some(debug) = flags.switch(Flag::Debug).or(both).or(all) {
        log.debug = debug;
    }
    if let Some(verbose) = flags.switch(Flag::TraceVerbose).or(all) {
        log.trace_verbose = verbose;
        log.trace = verbose;
    }
    if let Some(trace) = flags.switch(Flag::Trace).or(both) {
        log.trace = trace;
    }
    if let Some(time) = flags.switch(Flag::LogTime) {
        log.time = time;
    }
    if let Some(utc) = flags.switch(Flag::LogTimeUtc) {
        log.utc = utc;
    }
    if let Some(file) = flags.text(Flag::Log) {
        log.file = Some(file.to_owned()).filter(|file| !file.is_empty());
    }
    if let Some(bytes) = flags.integer(Flag::LogSizeLimit) {
        log.size_limit = not_negative("--log_size_limit", bytes)?;
    }
    if let Some(bytes) = flags.integer(Flag::MaxTracedMsgLen) {
        log.max_traced_msg_len = not_negative("--max_traced_msg_len", bytes)?;
    }
    Ok(())
}

fn not_negative<T: TryFrom<i64>>(name: &str, value: i64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("invalid value {value} for {name}"))
}

fn authorization(flags: &Flags, settings: &mut Settings) {
    let given = |flag| flags.text(flag).filter(|text| !text.is_empty());
    let (user, pass, token) = (given(Flag::User), given(Flag::Pass), given(Flag::Auth));
    if user.is_none() && pass.is_none() && token.is_none() {
        return;
    }
    let auth = settings.auth.get_or_insert_with(AuthSettings::default);
    if let Some(user) = user {
        auth.user = Some(user.to_owned());
    }
    if let Some(pass) = pass {
        auth.password = Some(Password::new(pass));
    }
    if let Some(token) = token {
        auth.token = Some(Password::new(token));
    }
}

fn cluster(flags: &Flags, settings: &mut Settings) -> Result<(), String> {
    let cluster = &mut settings.cluster;
    if let Some(name) = flags.text(Flag::ClusterName).filter(|name| !name.is_empty()) {
        if name.contains(' ') {
            return Err("cluster name cannot contain spaces".to_owned());
        }
        cluster.name = Some(name.to_owned());
    }
    match flags.text(Flag::Cluster) {
        None => {}
        Some("") => {
            cluster.port = None;
            cluster.routes.clear();
        }
        Some(url) => {
            let url = parse_url(url).map_err(|reason| format!("invalid value for --cluster: {reason}"))?;
            let Some(port) = url.port else {
                return Err(format!("address {}: missing port in address", url.host));
            };
            if url.user.is_some() && url.password.is_none() {
                return Err("expected cluster password to be set".to_owned());
            }
            cluster.host = Some(url.host);
            cluster.port = port;
            cluster.user = url.user.or_else(|| cluster.user.take());
            cluster.password = url
                .password
                .map(Password::new)
                .or_else(|| cluster.password.take());
        }
    }
    if let Some(routes) = flags.text(Flag::Routes).filter(|routes| !routes.is_empty()) {
        if cluster.port.is_none() {
            return Err("solicited routes require cluster capabilities, e.g. --cluster".to_owned());
        }
        cluster.routes = routes
            .split(',')
            .map(crate::file::route)
            .collect::<Result<_, _>>()
            .map_err(|reason| format!("invalid value for --routes: {reason}"))?;
    }
    if let Some(address) = flags
        .text(Flag::ClusterAdvertise)
        .filter(|address| !address.is_empty())
    {
        cluster.advertise = Some(parse_advertise(address)?);
    }
    if let Some(off) = flags.switch(Flag::NoAdvertise) {
        cluster.no_advertise = off;
    }
    if let Some(retries) = flags.integer(Flag::ConnectRetries) {
        cluster.connect_retries = not_negative("--connect_retries", retries)?;
    }
    Ok(())
}
