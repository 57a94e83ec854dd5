//! The log lines of a start, in nats-server's words and order: scripts and test suites wait for them.

use std::path::Path;
use tidelock_base::{API_LEVEL, COMPATIBLE_VERSION, TIDELOCK_VERSION};
use tidelock_conf::HostPort;
use tidelock_node::NodeShared;

/// What is logged before anything is opened.
pub(crate) fn starting(shared: &NodeShared) {
    let options = &shared.options;
    tracing::info!("Starting nats-server");
    tracing::info!("  Version:  {COMPATIBLE_VERSION}");
    tracing::info!("  Tidelock: {TIDELOCK_VERSION}");
    if let Some(cluster) = shared.cluster_name() {
        tracing::info!("  Cluster:  {cluster}");
    }
    tracing::info!("  Name:     {}", shared.identity.name);
    if options.jetstream.is_some() {
        tracing::info!(
            "  Node:     {}",
            tidelock_auth::hash8(shared.identity.name.as_bytes())
        );
    }
    tracing::info!("  ID:       {}", shared.identity.server_id);
    if options.users.has_plain_passwords() {
        tracing::warn!("Plaintext passwords detected, use nkeys or bcrypt");
    }
    if let Some(file) = &options.config_file {
        tracing::info!("Using configuration file: {} ({})", file.path, file.digest);
    }
}

/// What is logged once the monitoring port is open.
pub(crate) fn monitoring(shared: &NodeShared) {
    if let Some(monitor) = &shared.options.monitor {
        let at = HostPort::new(monitor.listen.host.clone(), shared.addresses.load().http_port);
        tracing::info!("Starting http monitor on {at}");
    }
}

/// What is logged about JetStream, once its store is open.
pub(crate) fn jetstream(shared: &NodeShared, folder: &Path) {
    let Some(js) = &shared.options.jetstream else {
        return;
    };
    tracing::info!("Starting JetStream");
    tracing::info!("---------------- JETSTREAM ----------------");
    tracing::info!("  Strict:          {}", js.strict);
    tracing::info!("  Max Memory:      {}", size(shared.room.memory_max()));
    tracing::info!("  Max Storage:     {}", size(shared.room.files_max()));
    tracing::info!(
        "  Store Directory: \"{}\"",
        folder.parent().unwrap_or(folder).display()
    );
    if let Some(domain) = &js.domain {
        tracing::info!("  Domain:          {domain}");
    }
    tracing::info!("  API Level:       {API_LEVEL}");
    tracing::info!("-------------------------------------------");
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    let (mut whole, mut rest, mut unit) = (bytes, 0, 0);
    while whole >= 1024 && unit < 4 {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    let name = ["B", "KB", "MB", "GB", "TB"].get(unit).copied().unwrap_or("TB");
    if unit == 0 {
        format!("{whole} {name}")
    } else {
        // Rounded, as nats-server does.
        let hundredths = whole * 100 + (rest * 100 + 512) / 1024;
        format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
    }
}

/// What is logged once clients are listened for.
pub(crate) fn listening(shared: &NodeShared) {
    let addresses = shared.addresses.load();
    let at = HostPort::new(shared.options.listen.host.clone(), addresses.listen_port);
    tracing::info!("Listening for client connections on {at}");
    tracing::info!("Server is ready");
    if let Some(cluster) = shared.cluster_name() {
        tracing::info!("Cluster name is {cluster}");
        let at = HostPort::new(addresses.cluster_host.clone(), addresses.cluster_port);
        tracing::info!("Listening for route connections on {at}");
    }
}
