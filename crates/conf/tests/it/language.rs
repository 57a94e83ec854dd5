//! The configuration language: what is accepted, what it comes to, and what is said of what is not.

use crate::memory::Memory;
use proptest::prelude::*;

/// Texts and the digests that nats-server 2.15.1 prints for them.
const DIGESTS: &str = include_str!("testdata/digests.txt");

#[test]
fn digests_are_those_of_nats_server() {
    for line in DIGESTS.lines().filter(|line| !line.starts_with('#')) {
        let (digest, text) = line.split_once(' ').unwrap();
        let text = text.replace("\\n", "\n").replace("\\r", "\r");
        assert_eq!(Memory::of(&text).check(), format!("sha256:{digest}"), "{text}");
    }
}

#[test]
fn syntax_errors_in_structure_name_the_line() {
    for (text, error) in [
        ("port: \n1", "2: 'Expected value but found new line'"),
        (
            "x: [a b]",
            "1: 'Expected an array value terminator \",\" or an array terminator \"]\", but got 'b' instead.'",
        ),
        (
            "x: [{a:1} {b:2}]",
            "1: 'Expected an array value terminator \",\" or an array terminator \"]\", but got '{' instead.'",
        ),
        ("x: [,]", "1: 'Unexpected array value terminator ','.'"),
        ("x: [\n\n,a]", "3: 'Unexpected array value terminator ','.'"),
        (
            "a: b\nport 1 2",
            "2: 'Expected a top-level value to end with a new line, comment or EOF, but got '2' instead.'",
        ),
        (
            "{port: 1",
            "1: 'Expected a block-level value to end with a new line, comment or EOF, but got the end of the file instead.'",
        ),
        ("cluster {", "1: 'Unexpected EOF processing map.'"),
        ("x: {a", "1: 'Unexpected EOF processing map key.'"),
        (
            "c { a: 1",
            "1: 'Expected a map value terminator \",\" or a map terminator \"}\", but got the end of the file instead.'",
        ),
        (
            "c {n: a n: b}",
            "1: 'Expected a map value terminator \",\" or a map terminator \"}\", but got 'n' instead.'",
        ),
        ("= 1", "1: 'Unexpected key separator '=''"),
        (": 1", "1: 'Unexpected key separator ':''"),
    ] {
        assert_eq!(
            Memory::of(text).check(),
            format!("Parse error on line {error}"),
            "{text}"
        );
    }
}

#[test]
fn syntax_errors_in_scalars_name_the_line() {
    for (text, error) in [
        ("n: \"abc", "1: 'Unexpected EOF.'"),
        ("n: 'a\nb", "2: 'Unexpected EOF.'"),
        ("\"port 3", "1: 'Unexpected EOF.'"),
        ("n: (\nabc\n", "3: 'Unexpected EOF processing block.'"),
        ("n: (abc)", "1: 'Unexpected EOF processing block.'"),
        (
            "n: \"a\\qb\"",
            "1: 'Invalid escape character 'q'. Only the following escape characters are allowed: \\xXX, \\t, \\n, \\r, \\\", \\\\.'",
        ),
        (
            "n: \"a\\x4g\"",
            "1: 'Expected two hexadecimal digits after '\\x', but got '4g''",
        ),
        ("n: .5", "1: 'Floats must start with a digit'"),
        (
            "n: 1.x",
            "1: 'Floats must have a digit after the '.', but got 'x' instead.'",
        ),
        (
            "n: 1.5MB",
            "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'M' instead.'",
        ),
        ("n: -a", "1: 'Expected a digit but got 'a'.'"),
        (
            "n: -1x",
            "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'x' instead.'",
        ),
        ("n: 12345-6", "1: 'All ISO8601 dates must be in full Zulu form.'"),
        (
            "n: 2026-1-1",
            "1: 'Expected digit in ISO8601 datetime, but found '-' instead.'",
        ),
        (
            "n: 2026-01-01T00:00:00+",
            "1: 'Expected 'Z' in ISO8601 datetime, but found '+' instead.'",
        ),
        ("include \"a", "1: 'Unexpected EOF in quoted include'"),
    ] {
        assert_eq!(
            Memory::of(text).check(),
            format!("Parse error on line {error}"),
            "{text}"
        );
    }
}

#[test]
fn other_errors_of_the_language() {
    for (text, error) in [
        ("\nport", "config is invalid (q.conf:2:5)"),
        (
            "port: 99999999999999999999",
            "integer '99999999999999999999' is out of the range",
        ),
        ("port: 10e", "integer '10e' is out of the range"),
        (
            "n: 2026-13-01T00:00:00Z",
            "expected Zulu formatted DateTime, but got '2026-13-01T00:00:00Z'",
        ),
        (
            "n: 2026-02-29T00:00:00Z",
            "expected Zulu formatted DateTime, but got '2026-02-29T00:00:00Z'",
        ),
        (
            "n: $NOPE",
            "variable reference for 'NOPE' on line 1 can not be found",
        ),
        ("a = $a", "variable reference for 'a' on line 1 can not be found"),
        ("\nn: $", "variable reference for '' on line 2 can not be found"),
        (
            "n: $2b$11$abc",
            "variable reference for '2b$11$abc' on line 1 can not be found",
        ),
        (
            "include missing.conf",
            "error parsing include file 'missing.conf', open missing.conf: no such file or directory",
        ),
    ] {
        assert_eq!(Memory::of(text).check(), error, "{text}");
    }
    assert_eq!(
        Memory::default().check(),
        "open q.conf: no such file or directory"
    );
}

#[test]
fn columns_count_from_0_on_the_first_line_and_from_1_on_others() {
    assert_eq!(
        Memory::of("foo: 1").check(),
        "q.conf:1:0: unknown field \"foo\"\n"
    );
    assert_eq!(
        Memory::of("a: 1, foo: 1").check().lines().nth(1),
        Some("q.conf:1:6: unknown field \"foo\"")
    );
    assert_eq!(
        Memory::of("\n\n  foo: 1").check(),
        "q.conf:3:3: unknown field \"foo\"\n"
    );
    assert_eq!(
        Memory::of("\"foo\": 1").check(),
        "q.conf:1:1: unknown field \"foo\"\n"
    );
    assert_eq!(
        Memory::of("cluster {\n foo: 1\n}").check(),
        "q.conf:2:2: unknown field \"foo\"\n"
    );
}

#[test]
fn numbers_and_their_suffixes() {
    let size = |text: &str| {
        let loaded = Memory::of(&format!("max_pending: {text}"))
            .load("-c q.conf")
            .unwrap();
        loaded.options.limits.max_pending
    };
    for (text, value) in [
        ("2000000", 2_000_000),
        ("2000k", 2_000_000),
        ("2000K", 2_000_000),
        ("2MB", 2 << 20),
        ("2mib", 2 << 20),
        ("2Mi", 2 << 20),
        ("2g", 2_000_000_000),
        ("2GiB", 2 << 30),
        ("2tb", 2 << 40),
        ("2p", 2_000_000_000_000_000),
        ("2eb", 2 << 60),
    ] {
        assert_eq!(size(text), value, "{text}");
    }
    for no_number in ["2kk", "2kbx", "2b", "0x10", "1_000", "1:2", "\"2MB\""] {
        let error = Memory::of(&format!("max_pending: {no_number}")).check();
        assert_eq!(
            error, "q.conf:1:0: interface conversion: interface {} is string, not int64\n",
            "{no_number}"
        );
    }
}

fn name(text: &str) -> Option<String> {
    Memory::of(text).load("-c q.conf").unwrap().options.server_name
}

#[test]
fn strings_of_all_forms() {
    for (text, value) in [
        ("server_name: abc", "abc"),
        ("server_name abc", "abc"),
        ("server_name=abc # comment", "abc"),
        ("server_name = http://x // comment", "http://x"),
        ("server_name: a#b", "a#b"),
        ("server_name: \"a\\x41\\\"\\\\\"", "aA\"\\"),
        ("server_name: 'a\\x41'", "a\\x41"),
        ("server_name: a\\x41b", "aAb"),
        ("server_name\n\n abc", "abc"),
        ("{server_name: abc}", "abc"),
        ("SERVER_name: abc; port: 3", "abc"),
        ("server_name: a:b=c", "a:b=c"),
        ("server_name: 127.0.0.1", "127.0.0.1"),
        ("server_name: 127.0.0.1:4222", "127.0.0.1:4222"),
        ("server_name: 10s", "10s"),
        ("server_name: 1m30s", "1m30s"),
        ("server_name: \"true\"", "true"),
        ("server_name: $2a$04$xyz", "$2a$04$xyz"),
        ("server_name: ab$c", "ab$c"),
        ("server_name: (\nabc\n)", "\nabc\n"),
        ("server_name: a\nserver_name: b", "b"),
        ("server_name: tr\u{fc}b", "tr\u{fc}b"),
        ("server_name: abc\r\nport: 3\r\n", "abc"),
    ] {
        assert_eq!(name(text).as_deref(), Some(value), "{text}");
    }
    assert_eq!(name("server_name:"), None);
}

#[test]
fn integers_before_a_bracket_are_read() {
    // nats-server swallows the bracket here.
    assert_eq!(Memory::of("x: [1,2,3]\ny: 4").check().lines().count(), 2);
}

#[test]
fn variables_are_looked_up_from_inner_to_outer_maps_and_then_in_the_environment() {
    let memory = |text: &str| {
        Memory::of(text)
            .variable("P", "7777")
            .variable("L", "[x, y]")
            .variable("N", "$P")
    };
    let options = |text: &str| memory(text).load("-c q.conf").unwrap().options;
    assert_eq!(options("X: 5\nport: $X").listen.port, 5);
    assert_eq!(options("X: 5\nY: $X\nport: $Y").listen.port, 5);
    assert_eq!(options("port: $P").listen.port, 7777);
    assert_eq!(options("P: 5\nport: $P").listen.port, 5);
    assert_eq!(options("port: $N").listen.port, 7777);
    assert_eq!(options("server_tags: $L").server_tags, ["x", "y"]);
    assert_eq!(
        options("X=abc\ncluster { X=def, name: $X}\nserver_name: $X")
            .cluster_name
            .as_deref(),
        Some("def")
    );
    assert_eq!(options("X={a: b}\nserver_metadata: $X").server_metadata.len(), 1);
    // Defined, but never used: an unknown field like any other.
    let unused = memory("X: 5\ncluster { X=def, name: $X}").check();
    assert_eq!(unused, "q.conf:1:0: unknown field \"X\"\n");
}

#[test]
fn variables_that_refer_to_themselves_are_found_out() {
    let memory = Memory::of("server_name: $A")
        .variable("A", "$B")
        .variable("B", "$A");
    assert!(
        memory.check().ends_with("variable reference cycle for 'A'"),
        "{}",
        memory.check()
    );
    let broken = Memory::of("server_name: $A").variable("A", "[a");
    assert!(
        broken
            .check()
            .starts_with("variable reference for 'A' on line 1 could not be parsed: Parse error")
    );
}

#[test]
fn includes_are_relative_to_the_including_file_and_merge_into_the_map() {
    let memory = Memory::default()
        .file("q.conf", "port: 1\ncluster { include 'sub/a.conf'; name: x }")
        .file("sub/a.conf", "include ./b.conf\nport: 2\n")
        .file("sub/b.conf", "name: y\nfoo: 1");
    assert_eq!(memory.check(), "sub/b.conf:2:1: unknown field \"foo\"\n");
    let memory = memory.file("sub/b.conf", "name: y, pool_size: 9");
    let options = memory.load("-c q.conf").unwrap().options;
    assert_eq!(options.cluster_name.as_deref(), Some("x"));
    let cluster = options.cluster.unwrap();
    assert_eq!((cluster.listen.port, cluster.pool_size), (2, 9));
    let memory = Memory::of("include a.conf").file("a.conf", "\n\nport: [1\n");
    assert!(
        memory
            .check()
            .starts_with("error parsing include file 'a.conf', Parse error on line 4: ")
    );
    // With a separator it is a key like any other.
    assert_eq!(
        Memory::of("include: a").check(),
        "q.conf:1:0: unknown field \"include\"\n"
    );
}

#[test]
fn includes_that_do_not_end_are_found_out() {
    let memory = Memory::of("include q.conf");
    assert_eq!(
        memory.check(),
        "error parsing include file 'q.conf', include cycle for 'q.conf'"
    );
}

#[test]
fn nesting_and_multiplication_are_bounded() {
    let deep = "[".repeat(100_000);
    assert!(
        Memory::of(&format!("x: {deep}"))
            .check()
            .contains("Too many arrays and maps")
    );
    let mut text = "a0 = [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = level - 1;
        let ten = vec![format!("$a{before}"); 10].join(", ");
        text.push_str(&format!("a{level} = [{ten}]\n"));
    }
    assert!(Memory::of(&text).check().contains("Too many values"));
}

#[test]
fn an_empty_file_is_a_warning() {
    for text in ["", "# only\n", "  \n", "{}", "{", " { \n", "{ # only", "}"] {
        assert_eq!(
            Memory::of(text).check(),
            "q.conf: config has no values or is empty\n"
        );
        assert_eq!(Memory::of(text).load("-c q.conf").unwrap().warnings.len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_do_no_harm(data in proptest::collection::vec(any::<u8>(), 0..120)) {
        tidelock_conf::fuzz(&data);
    }

    #[test]
    fn pieces_of_the_language_do_no_harm(pieces in proptest::collection::vec(piece(), 0..30)) {
        tidelock_conf::fuzz(pieces.concat().as_bytes());
    }

    /// Any text can be written as a string in double quotes and comes back.
    #[test]
    fn quoted_strings_come_back(text in "[^ ]{1,20}") {
        let escaped: String = text
            .bytes()
            .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("\\x{byte:02x}") })
            .collect();
        let read = name(&format!("server_name: \"{escaped}\""));
        prop_assert_eq!(read, Some(text));
    }
}

fn piece() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "port",
        "cluster",
        "x",
        ":",
        "=",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        ",",
        ";",
        "#",
        "//",
        "$x",
        "$",
        "1",
        "-1",
        "1.5",
        "2026-01-01T00:00:00Z",
        "k",
        "true",
        "\\x41",
        "\\",
        "include a\n",
        "include b",
        "authorization",
        "users",
        "accounts",
        "jetstream",
        "user",
        "a",
        "limits",
        "$2a$",
    ])
}
