//! What a message may cost (DESIGN section 3): hand-overs between threads, and allocations.

#![expect(
    unsafe_code,
    reason = "a global allocator that counts can only be written with unsafe"
)]
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use tidelock_base::AccountId;

thread_local! {
    /// Allocations of this thread while a worker was at work.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every call is handed to the system allocator as it came; counting touches thread-local cells that are
// initialised at compile time and so does not allocate itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if AT_WORK.try_with(Cell::get).unwrap_or(false) {
            let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONFIG: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n";

/// A node with a stream `S` on `s`, and a client on each worker; the number of the worker that has the stream.
fn node(workers: u16) -> (Net, Vec<Client>, usize) {
    let mut net = Net::new();
    let node = net.add(workers, CONFIG);
    net.run(Duration::from_secs(1));
    let clients: Vec<Client> = (0..usize::from(workers))
        .map(|worker| net.client(node, worker))
        .collect();
    net.tell(clients[0], "SUB in 1\r\n");
    let body = r#"{"name":"S","subjects":["s"],"allow_direct":true}"#;
    net.tell(
        clients[0],
        &format!("PUB $JS.API.STREAM.CREATE.S in {}\r\n{body}\r\n", body.len()),
    );
    let heard = net.hear(clients[0]);
    assert!(heard.contains("\"created\""), "{heard}");
    net.tell(clients[0], "UNSUB 1\r\n");
    net.run(Duration::from_secs(2));
    let directory = net.nodes[node].shared.directory.load();
    let group = directory.stream(AccountId(0), "S").unwrap().group;
    let owner = usize::from(net.nodes[node].shared.worker_of(group).0);
    drop(directory);
    (net, clients, owner)
}

/// Hand-overs while something is done.
fn hops(net: &mut Net, work: impl FnOnce(&mut Net)) -> u64 {
    let before = net.hops;
    work(net);
    net.hops - before
}

#[test]
fn a_message_between_clients_of_a_worker_is_handed_over_to_nobody() {
    let (mut net, clients, _) = node(2);
    let other = net.client(0, 0);
    net.tell(other, "SUB a 1\r\n");
    net.run(Duration::from_secs(1));
    assert_eq!(hops(&mut net, |net| net.tell(clients[0], "PUB a 2\r\nhi\r\n")), 0);
    assert!(net.hear(other).contains("MSG a 1 2"));
    assert_eq!(hops(&mut net, |net| net.tell(clients[1], "PUB a 2\r\nhi\r\n")), 1);
}

#[test]
fn a_publish_costs_the_sync_and_a_way_to_the_stream_and_back() {
    let (mut net, clients, owner) = node(2);
    for client in &clients {
        net.tell(*client, "SUB in 1\r\n");
    }
    net.run(Duration::from_secs(1));
    let (near, far) = (clients[owner], clients[1 - owner]);
    let publish = |net: &mut Net, client: Client| hops(net, |net| net.tell(client, "PUB s in.x 2\r\nhi\r\n"));
    net.tell(near, "SUB in.* 2\r\n");
    net.tell(far, "SUB in.* 2\r\n");
    net.tell(far, "UNSUB 2\r\n");
    net.run(Duration::from_secs(1));
    assert_eq!(publish(&mut net, near), 2, "to the disk's helper and back");
    assert!(net.hear(near).contains("\"seq\":1"));
    net.tell(near, "UNSUB 2\r\n");
    net.tell(far, "SUB in.* 2\r\n");
    net.run(Duration::from_secs(1));
    assert_eq!(
        publish(&mut net, far),
        4,
        "and to the worker of the stream and back"
    );
    assert!(net.hear(far).contains("\"seq\":2"));
    let get = |net: &mut Net, client: Client| {
        hops(net, |net| {
            net.tell(client, "PUB $JS.API.DIRECT.GET.S.s in.y 0\r\n\r\n")
        })
    };
    assert_eq!(get(&mut net, far), 2);
    assert!(net.hear(far).contains("Nats-Sequence: 2"));
    net.tell(near, "SUB in.* 2\r\n");
    net.tell(far, "UNSUB 2\r\n");
    net.run(Duration::from_secs(1));
    assert_eq!(get(&mut net, near), 0, "served in the turn in which it came");
    assert!(net.hear(near).contains("Nats-Sequence: 2"));
}

/// Allocations of a worker while a client says `line` so many times at once.
fn allocations(net: &mut Net, client: Client, line: &str, times: usize) -> u64 {
    net.say(client, line.repeat(times));
    net.around = |begins| AT_WORK.set(begins);
    COUNT.set(0);
    net.settle();
    net.around = |_| ();
    COUNT.get()
}

/// Few and many of the same cost the same: what is allocated, is so for a turn and not for a message.
fn costs_nothing_a_message(net: &mut Net, client: Client, heard: Client, line: &str) {
    const FEW: usize = 100;
    const MANY: usize = 600;
    for _ in 0..20 {
        allocations(net, client, line, MANY);
        net.hear(heard);
    }
    let few = allocations(net, client, line, FEW);
    assert!(!net.hear(heard).is_empty());
    let many = allocations(net, client, line, MANY);
    assert!(!net.hear(heard).is_empty());
    assert!(
        many <= few + (MANY - FEW) as u64 / 20,
        "{few} allocations for {FEW} messages, {many} for {MANY}"
    );
}

#[test]
fn a_core_message_allocates_nothing() {
    let (mut net, clients, _) = node(1);
    let other = net.client(0, 0);
    net.tell(other, "SUB a 1\r\n");
    costs_nothing_a_message(&mut net, clients[0], other, "PUB a 16\r\n0123456789abcdef\r\n");
}

#[test]
fn a_stored_message_and_its_acknowledgement_allocate_nothing() {
    let (mut net, clients, _) = node(1);
    net.tell(clients[0], "SUB in.* 1\r\n");
    costs_nothing_a_message(
        &mut net,
        clients[0],
        clients[0],
        "PUB s in.1 16\r\n0123456789abcdef\r\nPUB s in.2 16\r\n0123456789abcdef\r\n",
    );
}

#[test]
fn a_get_allocates_little() {
    let (mut net, clients, _) = node(1);
    net.tell(clients[0], "SUB in.* 1\r\nPUB s in.1 16\r\n0123456789abcdef\r\n");
    let get = "PUB $JS.API.DIRECT.GET.S.s in.1 0\r\n\r\n";
    for _ in 0..20 {
        allocations(&mut net, clients[0], get, 100);
    }
    let few = allocations(&mut net, clients[0], get, 10);
    let many = allocations(&mut net, clients[0], get, 110);
    assert!(net.hear(clients[0]).contains("Nats-Sequence: 1"));
    let each = (many - few) / 100;
    assert!(each <= 12, "{each} allocations for a get");
}
