//! The log lines of a start, in nats-server's words and order: scripts and test suites wait for them.

use tidelock_base::{COMPATIBLE_VERSION, TIDELOCK_VERSION};
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
        tracing::info!("  Node:     {}", tidelock_auth::hash8(shared.identity.name.as_bytes()));
    }
    tracing::info!("  ID:       {}", shared.identity.server_id);
    if options.users.has_plain_passwords() {
        tracing::warn!("Plaintext passwords detected, use nkeys or bcrypt");
    }
    if let Some(file) = &options.config_file {
        tracing::info!("Using configuration file: {} ({})", file.path, file.digest);
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
