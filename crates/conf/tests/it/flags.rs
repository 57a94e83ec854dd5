//! The syntax of flags, and the usage text.

use tidelock_conf::{FLAGS, Flag, FlagError, parse_flags, usage};

fn words(line: &str) -> Vec<String> {
    line.split(' ')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn error(line: &str) -> String {
    parse_flags(&words(line)).unwrap_err().to_string()
}

#[test]
fn one_dash_or_two_and_two_ways_to_give_a_value() {
    for line in ["-p 5", "--p 5", "-port=5", "--port 5", "-p 7 --port 5"] {
        let (flags, rest) = parse_flags(&words(line)).unwrap();
        assert_eq!(flags.integer(Flag::Port), Some(5), "{line}");
        assert!(rest.is_empty());
    }
    let (flags, _) = parse_flags(&words("-cluster= -routes nats://a:1,nats://b:2 -p -1")).unwrap();
    assert_eq!(flags.text(Flag::Cluster), Some(""));
    assert_eq!(flags.text(Flag::Routes), Some("nats://a:1,nats://b:2"));
    assert_eq!(flags.integer(Flag::Port), Some(-1));
}

#[test]
fn switches_take_a_value_only_with_an_equals_sign() {
    let (flags, rest) = parse_flags(&words("-D -V=false -T=0 -js=TRUE")).unwrap();
    assert_eq!(flags.switch(Flag::Debug), Some(true));
    assert_eq!(flags.switch(Flag::Trace), Some(false));
    assert_eq!(flags.switch(Flag::LogTime), Some(false));
    assert!(flags.is_on(Flag::JetStream));
    assert_eq!(flags.switch(Flag::Test), None);
    assert!(rest.is_empty());
    let (flags, rest) = parse_flags(&words("-D false")).unwrap();
    assert!(flags.is_on(Flag::Debug));
    assert_eq!(rest, ["false"]);
}

#[test]
fn reading_stops_at_the_first_word_that_is_no_flag() {
    let (flags, rest) = parse_flags(&words("-p 5 help -D")).unwrap();
    assert_eq!(flags.switch(Flag::Debug), None);
    assert_eq!(rest, ["help", "-D"]);
    assert_eq!(parse_flags(&words("-D -- -p")).unwrap().1, ["-p"]);
    assert_eq!(parse_flags(&words("-")).unwrap().1, ["-"]);
}

#[test]
fn errors_are_in_the_words_of_go() {
    assert_eq!(error("-bogus"), "flag provided but not defined: -bogus");
    assert_eq!(error("--bogus=1"), "flag provided but not defined: -bogus");
    assert_eq!(error("-p"), "flag needs an argument: -p");
    assert_eq!(error("-p abc"), "invalid value \"abc\" for flag -p: parse error");
    assert_eq!(
        error("--port=99999999999999999999"),
        "invalid value \"99999999999999999999\" for flag -port: value out of range"
    );
    assert_eq!(error("-D=x"), "invalid boolean value \"x\" for -D: parse error");
    assert_eq!(
        parse_flags(&words("---p")),
        Err(FlagError::Syntax("---p".to_owned()))
    );
    assert_eq!(error("-=p"), "bad flag syntax: -=p");
}

#[test]
fn no_name_stands_for_two_flags() {
    let mut names: Vec<_> = FLAGS
        .iter()
        .flat_map(|group| group.flags)
        .flat_map(|def| def.names)
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn the_usage_text_lists_every_name() {
    let text = usage("nats-server");
    assert!(text.starts_with("\nUsage: nats-server [options]\n\nServer Options:\n"));
    assert!(text.contains("    -p, --port <port>                Port for clients"));
    assert!(text.contains("        --cluster_name <name>        Name of the cluster"));
    for name in FLAGS
        .iter()
        .flat_map(|group| group.flags)
        .flat_map(|def| def.names)
    {
        assert!(text.contains(&format!("-{name}")), "{name}");
    }
}
