use super::*;

const A: Host = Host::Node(0);
const B: Host = Host::Node(1);

/// A network with a connection from A to B, and what is still to happen.
struct Fixture {
    net: Network,
    now: Mono,
    planned: Vec<(Mono, NetEvent)>,
    end: End,
}

impl Fixture {
    fn new() -> Self {
        let mut net = Network::new(Rng::new(1));
        let end = net.dial(Mono(0), A, B, Owner::Client(1));
        let mut fixture = Self {
            net,
            now: Mono(0),
            planned: Vec::new(),
            end,
        };
        fixture.run();
        assert_eq!(fixture.net.asked(end.conn), Some(B));
        fixture.net.accept(fixture.now, end.conn, Owner::Client(2));
        fixture.run();
        assert_eq!(fixture.net.answered(end.conn), Some((Owner::Client(1), true)));
        fixture
    }

    fn write(&mut self, end: End, bytes: &[u8]) -> io::Result<usize> {
        self.net
            .write(self.now, end, std::iter::once(bytes))
            .map(|(n, _)| n)
    }

    /// Lets a second pass.
    fn run(&mut self) {
        let until = self.now + Duration::from_secs(1);
        loop {
            self.planned.extend(self.net.take_events());
            self.planned.sort_by_key(|(at, _)| *at);
            if self.planned.first().is_none_or(|(at, _)| *at > until) {
                break;
            }
            let (at, event) = self.planned.remove(0);
            self.now = at;
            if let NetEvent::Arrive(end) = event {
                self.net.arrive(at, end);
            }
        }
        self.now = until;
    }

    fn read(&mut self, end: End) -> Read {
        self.net.read(self.now, end, 1 << 20)
    }
}

fn bytes(text: &[u8]) -> Read {
    Read::Bytes(text.to_vec())
}

#[test]
fn bytes_arrive_in_order_and_the_end_after_them() {
    let mut f = Fixture::new();
    let (a, b) = (f.end, f.end.other());
    for part in [&b"one "[..], b"two ", b"three"] {
        f.write(a, part).unwrap();
    }
    assert_eq!(f.read(b), Read::Empty);
    f.net.close(f.now, a);
    f.run();
    assert_eq!(f.read(b), bytes(b"one two three"));
    assert_eq!(f.read(b), Read::Ended);
}

#[test]
fn a_full_connection_makes_its_writer_wait() {
    let mut f = Fixture::new();
    let (a, b) = (f.end, f.end.other());
    assert_eq!(f.write(a, &vec![7; WINDOW + 10]).unwrap(), WINDOW);
    assert_eq!(f.write(a, b"x").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    f.run();
    assert_eq!(f.net.read(f.now, b, 10), bytes(&[7; 10]));
    assert!(
        f.net
            .take_events()
            .iter()
            .any(|(_, event)| *event == NetEvent::Room(a))
    );
    assert_eq!(f.write(a, &[1; 20]).unwrap(), 10);
}

#[test]
fn a_held_way_delivers_later_and_a_cut_one_never() {
    let mut f = Fixture::new();
    let (a, b) = (f.end, f.end.other());
    f.net.set_way(f.now, A, B, Way::Held);
    f.write(a, b"late").unwrap();
    f.write(b, b"back").unwrap();
    f.run();
    assert_eq!((f.read(b), f.read(a)), (Read::Empty, bytes(b"back")));
    f.net.set_way(f.now, A, B, Way::Open);
    f.run();
    assert_eq!(f.read(b), bytes(b"late"));

    f.write(a, b"in flight").unwrap();
    f.net.set_way(f.now, A, B, Way::Cut);
    f.run();
    f.write(a, b"lost").unwrap();
    f.run();
    assert_eq!(
        (f.read(b), f.read(a)),
        (Read::Empty, Read::Empty),
        "nobody is told"
    );
    f.net.set_way(f.now, A, B, Way::Open);
    f.run();
    assert_eq!((f.read(b), f.read(a)), (Read::Ended, Read::Ended));
}

#[test]
fn nothing_is_opened_through_a_cut_and_nobody_answers_where_nobody_is() {
    let mut f = Fixture::new();
    f.net.set_way(f.now, B, A, Way::Cut);
    let end = f.net.dial(f.now, A, B, Owner::Client(3));
    assert_eq!(f.net.asked(end.conn), None);
    f.net.heal(f.now);
    assert_eq!(f.net.asked(end.conn), Some(B));
    f.net.refuse(f.now, end.conn);
    assert_eq!(f.net.answered(end.conn), Some((Owner::Client(3), false)));
    assert_eq!(f.net.owner(end), Owner::Nobody);
}
