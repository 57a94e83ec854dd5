//! The files that tell other programs of a running server: process id and ports.

use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidelock_conf::HostPort;
use tidelock_node::NodeShared;

/// Writes the pid file, where it is asked for.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_pid(shared: &NodeShared) -> Result<()> {
    if let Some(path) = &shared.options.pid_file {
        write_file(Path::new(path), shared.identity.pid.to_string().as_bytes())
            .with_context(|| format!("Could not write pidfile: {path}"))?;
    }
    Ok(())
}

/// Writes the ports file, where it is asked for. A server runs without it.
pub(crate) fn write_ports(shared: &NodeShared) {
    let Some(path) = ports_path(shared) else { return };
    if let Err(error) = write_file(&path, ports(shared).to_string().as_bytes()) {
        tracing::error!("Error writing ports file to {}: {error}", path.display());
    }
}

/// Removes the ports file; the pid file stays, as nats-server leaves it.
pub(crate) fn remove(shared: &NodeShared) {
    if let Some(path) = ports_path(shared) {
        let _ = std::fs::remove_file(path);
    }
}

fn write_file(path: &Path, data: &[u8]) -> std::io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .open(path)?
        .write_all(data)
}

/// `DIR/<basename of argv[0]>_<pid>.ports`.
fn ports_path(shared: &NodeShared) -> Option<PathBuf> {
    let folder = shared.options.ports_file_dir.as_ref()?;
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program)
        .file_name()
        .map_or_else(|| "tidelock".into(), |name| name.to_string_lossy());
    Some(Path::new(folder).join(format!("{program}_{}.ports", shared.identity.pid)))
}

fn ports(shared: &NodeShared) -> serde_json::Value {
    let addresses = shared.addresses.load();
    let urls = |scheme: &str, host: &str, port: u16| -> Vec<String> {
        let ip = host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let hosts = if host.parse::<IpAddr>().is_ok() {
            hosts_of(ip)
        } else {
            vec![host.to_owned()]
        };
        hosts
            .into_iter()
            .map(|host| format!("{scheme}://{}", HostPort::new(host, port)))
            .collect()
    };
    let mut ports = serde_json::Map::new();
    let nats = urls("nats", &shared.options.listen.host, addresses.listen_port);
    ports.insert("nats".to_owned(), nats.into());
    if addresses.http_port != 0 {
        let urls = urls("http", &addresses.http_host, addresses.http_port);
        ports.insert("monitoring".to_owned(), urls.into());
    }
    if addresses.cluster_port != 0 {
        let urls = urls("nats", &addresses.cluster_host, addresses.cluster_port);
        ports.insert("cluster".to_owned(), urls.into());
    }
    ports.into()
}

/// The addresses at which a listener on `ip` can be reached: itself, or for a wildcard address loopback first and
/// then those of all interfaces.
pub(crate) fn hosts_of(ip: IpAddr) -> Vec<String> {
    if !ip.is_unspecified() {
        return vec![ip.to_string()];
    }
    let mut hosts = vec![Ipv4Addr::LOCALHOST.to_string(), Ipv6Addr::LOCALHOST.to_string()];
    for address in interface_addresses() {
        let text = address.to_string();
        if !hosts.contains(&text) {
            hosts.push(text);
        }
    }
    hosts
}

/// IPv4 addresses of the machine's interfaces, from the kernel's table of local routes.
fn interface_addresses() -> Vec<IpAddr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut found = Vec::new();
    let mut last = None;
    for line in table.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL")
            && let Some(address) = last.take().filter(|a| !a.is_loopback())
            && !found.contains(&IpAddr::V4(address))
        {
            found.push(IpAddr::V4(address));
        }
    }
    found
}
