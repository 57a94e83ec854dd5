//! The shell: threads, sockets, files, signals and HTTP around the node's workers. It decides nothing; it carries out
//! what a turn asks for and feeds in what came of it.

mod banner;
mod clock;
mod disk;
#[cfg(test)]
mod disk_tests;
mod files;
mod folders;
mod helpers;
mod http;
mod process;
mod random;
mod shell;
mod store;

use anyhow::{Context, Result};
use clock::Clock;
use helpers::DiskHelpers;
use http::Monitor;
use mio::net::TcpListener;
use shell::{Command, Mailbox, Parts, Seat, Shell};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use store::Store;
use tidelock_auth::ServerKey;
use tidelock_base::{BootId, GroupId, NodeId, WorkerId};
use tidelock_conf::{HostPort, Options};
use tidelock_node::{Addresses, Answer, NodeShared, QueryId, Resources, ServerIdentity, Worker};
use tidelock_record::Disk;
use tidelock_wal::{Lane, Recovered};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// What the binary provides for.
pub struct Hooks {
    /// Reopens the log file (SIGUSR1); answers whether there is one.
    pub reopen_log: Box<dyn Fn() -> bool + Send>,
    /// Called by each thread of a worker, with the worker's number, before it does anything else.
    pub thread_begins: ThreadBegins,
}

/// See [`Hooks::thread_begins`].
pub type ThreadBegins = fn(u16);

/// A start-up that failed; the text is nats-server's, and goes to the log as fatal.
#[derive(Debug)]
pub struct Fatal(pub String);

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fatal {}

/// Runs a server until it is told to stop; answers the exit code.
///
/// # Errors
/// When the server cannot start: [`Fatal`] for what nats-server reports as fatal, or what failed otherwise.
pub fn run(options: Options, hooks: &Hooks) -> Result<i32> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]).context("signals cannot be handled")?;
    let server = Server::start_with(options, hooks.thread_begins)?;
    let control = server.control();
    let handle = signals.handle();
    let ended = thread::Builder::new().name("end".to_owned()).spawn(move || {
        server.wait();
        handle.close();
    })?;
    for signal in signals.forever() {
        on_signal(signal, &control, hooks);
    }
    let _ = ended.join();
    tracing::info!("Server Exiting..");
    Ok(0)
}

/// A running server.
pub struct Server {
    control: Control,
    threads: Vec<JoinHandle<()>>,
    /// Holds the store's lock.
    store: Option<Store>,
}

/// What can be asked of a running server.
#[derive(Clone)]
pub struct Control {
    shared: Arc<NodeShared>,
    mailboxes: Vec<Mailbox>,
}

impl Control {
    /// Where the server listens.
    #[must_use]
    pub fn addresses(&self) -> Arc<Addresses> {
        self.shared.addresses.load_full()
    }

    /// Stops the server in good order; [`Server::wait`] returns once it has.
    pub fn stop(&self) {
        self.tell(Command::Stop);
    }

    /// Begins lame duck mode; the server stops at its end.
    pub fn lame_duck(&self) {
        self.tell(Command::LameDuck);
    }

    fn tell(&self, command: Command) {
        self.mailboxes
            .iter()
            .for_each(|mailbox| mailbox.send(shell::Input::Command(command)));
    }
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// [`Fatal`] for what nats-server reports as fatal, or what failed otherwise.
    pub fn start(options: Options) -> Result<Self> {
        Self::start_with(options, |_| ())
    }

    /// Starts a server whose threads begin with a call.
    fn start_with(options: Options, thread_begins: ThreadBegins) -> Result<Self> {
        let clock = Clock::start();
        let store = options.jetstream.as_ref().map(Store::open).transpose()?;
        let identity = identity(&options, &clock, store.as_ref())?;
        let workers = worker_count(identity.cores);
        let mut shared = NodeShared::new(identity, options, workers);
        let free = match &store {
            Some(store) => {
                shared.budgets.log = store.log_sizes(workers)?.0;
                store.free_bytes()?
            }
            None => 0,
        };
        default_limits(&shared, free);
        let shared = Arc::new(shared);
        shared.system.set_process_probe(Box::new(process::Probe));
        banner::starting(&shared);
        files::write_pid(&shared)?;
        let monitor = shared.options.monitor.as_ref().map(Monitor::open).transpose()?;
        let clients = listen(&shared.options.listen)?;
        let routes = shared
            .options
            .cluster
            .as_ref()
            .map(|cluster| listen(&cluster.listen))
            .transpose()?;
        set_addresses(&shared, &clients, routes.as_ref(), monitor.as_ref())?;
        banner::monitoring(&shared);
        if let Some(store) = &store {
            banner::jetstream(&shared, &store.folder);
            // Set once in the life of a process.
            let _ = shared.store_folder.set(store.folder.display().to_string());
            let base = store.folder.parent().unwrap_or(&store.folder);
            shared.system.set_resources(Resources {
                store_dir: base.display().to_string(),
            });
        }
        let listeners = Listeners {
            clients: Some(clients),
            routes,
        };
        let (answers, answered) = unbounded_channel();
        let (mailboxes, threads) = start_workers(
            &shared,
            (clock, thread_begins),
            listeners,
            store.as_ref(),
            &answers,
        )?;
        // What the streams hold already is not free, and may be there all the same.
        default_limits(&shared, free.saturating_add(shared.room.files_stored()));
        if let (Some(monitor), Some(first)) = (monitor, mailboxes.first()) {
            monitor.serve(first.clone(), answered)?;
        }
        shared.system.set_ready();
        banner::listening(&shared);
        files::write_ports(&shared);
        Ok(Self {
            control: Control { shared, mailboxes },
            threads,
            store,
        })
    }

    /// What can be asked of it.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits until the server has stopped.
    pub fn wait(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
        files::remove(&self.control.shared);
        drop(self.store);
    }
}

/// How much is stored at most where the configuration does not say it: three quarters of the machine's memory, and of
/// `free` bytes on the store's disk, as on nats-server.
fn default_limits(shared: &NodeShared, free: u64) {
    let Some(options) = &shared.options.jetstream else {
        return;
    };
    if options.max_store.is_none() {
        shared.room.set_files_max(free / 4 * 3);
    }
    if let (None, Some(memory)) = (options.max_memory, process::memory_bytes()) {
        shared.room.set_memory_max(memory / 4 * 3);
    }
}

fn on_signal(signal: i32, control: &Control, hooks: &Hooks) {
    let name = match signal {
        SIGINT => "interrupt",
        SIGTERM => "terminated",
        SIGHUP => "hangup",
        SIGUSR1 => "user defined signal 1",
        _ => "user defined signal 2",
    };
    tracing::info!("Trapped {name:?} signal");
    match signal {
        // Whoever wanted lame duck mode wants it to end in its own time.
        SIGTERM if control.shared.lame_duck.load(Ordering::Relaxed) => {}
        SIGINT | SIGTERM => control.stop(),
        SIGUSR1 => {
            (hooks.reopen_log)();
        }
        SIGUSR2 => control.lame_duck(),
        _ => tracing::error!(
            "Failed to reload server configuration: not supported by this version of Tidelock yet"
        ),
    }
}

/// One worker a core; on machines of one or two cores one worker serves better (see `bench/RESULTS.md`).
fn worker_count(cores: usize) -> u16 {
    if cores <= 2 {
        1
    } else {
        u16::try_from(cores).unwrap_or(1).min(64)
    }
}

fn identity(options: &Options, clock: &Clock, store: Option<&Store>) -> Result<ServerIdentity> {
    let key = ServerKey::from_seed(random::bytes()?)?;
    let server_id: Arc<str> = key.id().into();
    Ok(ServerIdentity {
        node: match store {
            Some(store) => store.node,
            None => NodeId(u64::from_le_bytes(random::bytes()?)),
        },
        boot: BootId(u128::from_le_bytes(random::bytes()?)),
        name: options
            .server_name
            .as_deref()
            .map_or_else(|| Arc::clone(&server_id), Arc::from),
        server_id,
        pid: std::process::id(),
        cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
        start: clock.now(),
    })
}

/// Binds a listener as nats-server does: an address that cannot be had is fatal.
fn listen(at: &HostPort) -> Result<TcpListener> {
    use std::net::ToSocketAddrs;
    let failed = |reason: String| Fatal(format!("Error listening on port: {at}, \"{reason}\""));
    let address = (at.host.as_str(), at.port)
        .to_socket_addrs()
        .map_err(|e| failed(format!("listen tcp: lookup {}: {e}", at.host)))?
        .next()
        .ok_or_else(|| failed(format!("listen tcp: lookup {}: no such host", at.host)))?;
    let listener =
        bind(address).map_err(|e| failed(format!("listen tcp {address}: bind: {}", text_of(&e))))?;
    Ok(TcpListener::from_std(listener))
}

fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// The system's text without the number that Rust appends, in Go's lower case.
fn text_of(e: &std::io::Error) -> String {
    let text = e.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn set_addresses(
    shared: &NodeShared,
    clients: &TcpListener,
    routes: Option<&TcpListener>,
    monitor: Option<&Monitor>,
) -> Result<()> {
    let options = &shared.options;
    let client = clients.local_addr()?;
    let advertised = options.client_advertise.as_ref();
    let host = advertised.map_or_else(|| options.listen.host.clone(), |a| a.host.clone());
    let port = advertised.and_then(|a| a.port).unwrap_or_else(|| client.port());
    let client_urls = match advertised {
        Some(_) => vec![HostPort::new(host.clone(), port).to_string().into()],
        None => files::hosts_of(client.ip())
            .into_iter()
            .map(|h| HostPort::new(h, port).to_string().into())
            .collect(),
    };
    let cluster = routes.map(|listener| listener.local_addr()).transpose()?;
    shared.addresses.store(Arc::new(Addresses {
        client_host: host,
        client_port: port,
        listen_port: client.port(),
        client_urls,
        cluster_host: options
            .cluster
            .as_ref()
            .map(|c| c.listen.host.clone())
            .unwrap_or_default(),
        cluster_port: cluster.map_or(0, |address| address.port()),
        http_host: options
            .monitor
            .as_ref()
            .map(|m| m.listen.host.clone())
            .unwrap_or_default(),
        http_port: monitor
            .map(Monitor::address)
            .transpose()?
            .map_or(0, |address| address.port()),
    }));
    Ok(())
}

type Running = (Vec<Mailbox>, Vec<JoinHandle<()>>);

/// What is listened on; the first worker takes it.
struct Listeners {
    clients: Option<TcpListener>,
    routes: Option<TcpListener>,
}

/// Which worker's lane holds which group.
fn groups_of(lanes: &[(Lane, Recovered)]) -> impl Iterator<Item = (GroupId, WorkerId)> {
    let numbered = (0_u16..).map(WorkerId).zip(lanes);
    numbered.flat_map(|(worker, (_, lane))| lane.groups.keys().map(move |group| (*group, worker)))
}

fn start_workers(
    shared: &Arc<NodeShared>,
    (clock, thread_begins): (Clock, ThreadBegins),
    mut listeners: Listeners,
    store: Option<&Store>,
    answers: &UnboundedSender<(QueryId, Answer)>,
) -> Result<Running> {
    let seats: Vec<Seat> = (0..shared.workers)
        .map(|_| Seat::new())
        .collect::<std::io::Result<_>>()?;
    let mailboxes: Vec<Mailbox> = seats.iter().map(Seat::mailbox).collect();
    let disk = store.map(|store| Arc::clone(&store.disk) as Arc<dyn Disk + Send + Sync>);
    let mut lanes = match store {
        Some(store) => {
            let lanes = store.recover(shared.workers)?.lanes;
            shared.place_groups(groups_of(&lanes));
            lanes.into_iter()
        }
        None => Vec::new().into_iter(),
    };
    let mut threads = Vec::new();
    for (seat, number) in seats.into_iter().zip(0_u16..) {
        let mut worker = Worker::new(
            Arc::clone(shared),
            WorkerId(number),
            u64::from_le_bytes(random::bytes()?),
        );
        let lane = lanes.next();
        worker.begin(clock.now());
        worker
            .start(lane, disk.clone())
            .map_err(|e| Fatal(format!("Can't start JetStream: {e}")))?;
        let parts = Parts {
            seat,
            clock,
            peers: mailboxes.clone(),
            clients: listeners.clients.take(),
            routes: listeners.routes.take(),
            disk: DiskHelpers::start((number, thread_begins), disk.clone())?,
            answers: answers.clone(),
        };
        let shell = Shell::new(worker, parts)?;
        let work = move || {
            thread_begins(number);
            if let Err(e) = shell.run() {
                tracing::error!("worker {number} ended: {e}");
            }
        };
        threads.push(
            thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(work)?,
        );
    }
    Ok((mailboxes, threads))
}
