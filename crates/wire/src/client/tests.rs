use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    control_line: 64,
    payload: 100,
};

/// An event in text, so that events of different inputs can be compared.
fn show(event: &Event<'_>) -> String {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    match event {
        Event::Publish { line, block, tail } => format!(
            "{} {} {:?} {} {} {:?} [{}]",
            if line.has_header { "HPUB" } else { "PUB" },
            text(line.subject),
            line.reply.map(text),
            line.header_len,
            line.size,
            text(block),
            text(tail)
        ),
        Event::Connect(json) => format!("CONNECT {}", text(json)),
        Event::Sub { subject, queue, sid } => {
            format!("SUB {} {:?} {}", text(subject), queue.map(text), text(sid))
        }
        Event::Unsub { sid, max } => format!("UNSUB {} {max}", text(sid)),
        Event::Ping => "PING".into(),
        Event::Pong => "PONG".into(),
        Event::Ok => "+OK".into(),
        Event::Err(args) => format!("-ERR {}", text(args)),
        Event::Info(json) => format!("INFO {}", text(json)),
    }
}

/// Everything that is in `input`, shown to the parser in pieces that end at `cuts`.
fn run(input: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut ends: Vec<usize> = cuts.iter().map(|c| c % (input.len() + 1)).collect();
    ends.push(input.len());
    ends.sort_unstable();
    let (mut at, mut out) = (0, Vec::new());
    for end in ends {
        while at < end {
            match parse(&input[at..end], &LIMITS) {
                Ok(Parsed::Event(event, len)) => {
                    out.push(show(&event));
                    at += len;
                }
                Ok(Parsed::NeedLine | Parsed::NeedPayload { .. }) => break,
                Err(error) => {
                    out.push(format!("{error} / {:?}", error.reply()));
                    return out;
                }
            }
        }
    }
    out
}

fn one(input: &str) -> String {
    run(input.as_bytes(), &[]).join("; ")
}

#[test]
fn events() {
    for (input, expected) in [
        (
            "PUB a 1\r\nx\r\n",
            r#"PUB a None 0 1 "x\r\n" [1"#.to_owned() + "\r\nx\r\n]",
        ),
        (
            "PUB a r 0\r\n\r\n",
            r#"PUB a Some("r") 0 0 "\r\n" [r 0"#.to_owned() + "\r\n\r\n]",
        ),
        (
            "PUB a 5 1\r\nx\r\n",
            r#"PUB a Some("5") 0 1 "x\r\n" [5 1"#.to_owned() + "\r\nx\r\n]",
        ),
        (
            "HPUB a 1 3\r\nxyz\r\n",
            r#"HPUB a None 1 3 "xyz\r\n" [1 3"#.to_owned() + "\r\nxyz\r\n]",
        ),
        (
            "HPUB a r 1 3\r\nxyz\r\n",
            r#"HPUB a Some("r") 1 3 "xyz\r\n" [r 1 3"#.to_owned() + "\r\nxyz\r\n]",
        ),
        // Not canonical, so not fit to be passed on as it stands.
        (
            "pub\ta  r\t001 \nx\r\n",
            r#"PUB a Some("r") 0 1 "x\r\n" []"#.into(),
        ),
        ("HPUB a 0 3\r\nxyz\r\n", r#"HPUB a None 0 3 "xyz\r\n" []"#.into()),
        ("PUB a\r 0\r\n\r\n", r#"PUB a None 0 0 "\r\n" []"#.into()),
        ("SUB a.* 1\r\n", "SUB a.* None 1".into()),
        ("sub a q  x\n", r#"SUB a Some("q") x"#.into()),
        (
            "UNSUB 1\r\nUNSUB 1 5\r\nUNSUB 1 zz\r\n",
            "UNSUB 1 0; UNSUB 1 5; UNSUB 1 0".into(),
        ),
        (
            "PINGxyz\r\npong\r\nping\n+OKxx\r\n",
            "PING; PONG; PING; +OK".into(),
        ),
        (
            "CONNECT{\"a\":1}\r\nconnect  {}\r\n",
            "CONNECT {\"a\":1}; CONNECT {}".into(),
        ),
        ("-ERR 'x'\r\nINFO {}\r\n", "-ERR 'x'; INFO {}".into()),
    ] {
        assert_eq!(one(input), expected, "{input:?}");
    }
}

#[test]
fn errors_and_what_is_said_about_them() {
    const UNKNOWN: &str = " / Some(\"Unknown Protocol Operation\")";
    let unknown = |snippet: &str| format!("Client parser ERROR, proto='{snippet}'...{UNKNOWN}");
    for (input, expected) in [
        ("\r\n", unknown(r#""\r\n""#)),
        ("X", unknown(r#""X""#)),
        ("MSG a 1 1\r\nx\r\n", unknown(r#""MSG a 1 1\r\nx\r\n""#)),
        ("UNSUB\r\n", unknown(r#""UNSUB\r\n""#)),
        ("-ERR\r\n", unknown(r#""-ERR\r\n""#)),
        ("PUB a 1\r\nxyz", unknown(r#""yz""#)),
        ("PUB a 1\r\nxy", unknown(r#""y""#)),
        ("PUB a 1\r\nx\ry", unknown(r#""\ry""#)),
        ("PUB foo\r\n", r#"processPub Parse Error: "foo" / None"#.into()),
        (
            "PUB a b c 1\r\n",
            r#"processPub Parse Error: "a b c 1" / None"#.into(),
        ),
        (
            "PUB foo -1\r\n",
            r#"processPub Bad or Missing Size: "foo -1" / None"#.into(),
        ),
        (
            "PUB foo 0000000001\r\n",
            r#"processPub Bad or Missing Size: "foo 0000000001" / None"#.into(),
        ),
        (
            "HPUB a 13 12\r\n",
            r#"processHeaderPub Header Size larger then TotalSize: "a 13 12" / None"#.into(),
        ),
        (
            "HPUB a x 12\r\n",
            r#"processHeaderPub Bad or Missing Header Size: "a x 12" / None"#.into(),
        ),
        (
            "HPUB a 12 x\r\n",
            r#"processHeaderPub Bad or Missing Total Size: "a 12 x" / None"#.into(),
        ),
        (
            "HPUB a 12\r\n",
            r#"processHeaderPub Parse Error: "a 12" / None"#.into(),
        ),
        ("SUB foo\r\n", r#"processSub Parse Error: "foo" / None"#.into()),
        (
            "SUB a b c d\r\n",
            r#"processSub Parse Error: "a b c d" / None"#.into(),
        ),
        (
            "UNSUB a 1 2\r\n",
            r#"processUnsub Parse Error: "a 1 2" / None"#.into(),
        ),
        (
            "PUB a 101\r\n",
            "maximum payload exceeded: 101 vs 100 / Some(\"Maximum Payload Violation\")".into(),
        ),
    ] {
        assert_eq!(one(input), expected, "{input:?}");
    }
}

#[test]
fn the_control_line_limit_counts_arguments_only() {
    let long = " / Some(\"maximum control line exceeded\")";
    let fits = format!("PUB {} 0\r\n\r\n", "x".repeat(62));
    assert!(one(&fits).starts_with("PUB xxx"));
    for input in [
        format!("PUB {} 0\r\n\r\n", "x".repeat(63)),
        format!("PUB {}", "x".repeat(66)),
        format!("CONNECT {}", "x".repeat(66)),
        format!("SUB {} 1\r\n", "x".repeat(63)),
        format!("SUB{}", " ".repeat(66)),
        // What means nothing counts as well, whole or not.
        format!("SUB{}a 1\r\n", " ".repeat(66)),
        format!("PING{}\r\n", "x".repeat(65)),
        format!("PING{}", "x".repeat(66)),
    ] {
        assert!(one(&input).ends_with(long), "{input}");
    }
    assert_eq!(one(&format!("CONNECT {}", "x".repeat(65))), "");
    assert_eq!(one(&format!("PING{}\r\n", "x".repeat(64))), "PING");
}

#[test]
fn a_kept_control_line_is_read_again() {
    for (line, reply) in [("PUB a 5\r\n", None), ("hpub a\tr 2 5\n", Some(&b"r"[..]))] {
        let parsed = parse_publish_line(line.as_bytes()).unwrap();
        assert_eq!((parsed.subject, parsed.reply, parsed.size), (&b"a"[..], reply, 5));
    }
    assert_eq!(parse_publish_line(b"SUB a 1\r\n"), None);
}

/// Text made of pieces of the protocol, mostly valid.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let publish = (
        "[a-z.*>]{1,20}",
        "(|[a-z._0-9]{1,12})",
        prop::collection::vec(any::<u8>(), 0..40),
        0_usize..4,
    );
    let publish = publish.prop_map(|(subject, reply, payload, form)| {
        let reply = if reply.is_empty() { reply } else { reply + " " };
        let (n, half) = (payload.len(), payload.len() / 2);
        let mut out = match form {
            0 => format!("HPUB {subject} {reply}{half} {n}\r\n").into_bytes(),
            1 => format!("pub\t{subject}  {reply}0{n} \n").into_bytes(),
            _ => format!("PUB {subject} {reply}{n}\r\n").into_bytes(),
        };
        out.extend_from_slice(&payload);
        out.extend_from_slice(b"\r\n");
        out
    });
    let line = prop_oneof![
        Just("PING\r\n"),
        Just("pong\n"),
        Just("SUB a.b 1\r\n"),
        Just("SUB a q 2\r\n"),
        Just("UNSUB 1\r\n"),
        Just("CONNECT {}\r\n"),
        Just("+OK\r\n"),
        Just("PUB a\r\n"),
        Just("JUNK\r\n"),
        Just("P"),
    ];
    let garbage = prop::collection::vec(any::<u8>(), 0..6);
    let piece = prop_oneof![
        8 => publish,
        6 => line.prop_map(|l: &str| l.as_bytes().to_vec()),
        1 => garbage,
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_events(input in input(), cuts in prop::collection::vec(0_usize..2000, 0..8)) {
        let whole = run(&input, &[]);
        let cut = run(&input, &cuts);
        // An error shows what was there when it was noticed, so its text may be shorter.
        prop_assert_eq!(whole.len(), cut.len());
        for (a, b) in whole.iter().zip(&cut) {
            prop_assert!(a == b || a.split(',').next() == b.split(',').next(), "{} / {}", a, b);
        }
    }

    #[test]
    fn byte_by_byte_is_the_same_too(input in input()) {
        let cuts: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(run(&input, &[]).len(), run(&input, &cuts).len());
    }

    #[test]
    fn both_ways_through_the_parser_agree(subject in "[a-z.]{1,12}", reply in "(|[0-9a-z._]{1,12})", n in 0_usize..40) {
        // The same line in capitals (the short way) and in small letters (the general way).
        let reply = if reply.is_empty() { reply } else { reply + " " };
        let payload = "p".repeat(n);
        let short = format!("PUB {subject} {reply}{n}\r\n{payload}\r\n");
        let general = format!("pub {subject} {reply}{n}\r\n{payload}\r\n");
        let cut = |s: String| s.split('[').next().map(str::to_owned);
        prop_assert_eq!(cut(one(&short)), cut(one(&general)));
    }
}
