//! The binary as scripts use it: what it prints where, and how it exits.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// Runs the binary in `directory` with these words.
fn run(directory: &tempfile::TempDir, words: &str) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_tidelock"))
        .args(words.split_whitespace())
        .current_dir(directory.path())
        .output()
        .expect("the binary was built for this test");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// A directory with one configuration file, `q.conf`.
fn with_config(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::write(directory.path().join("q.conf"), text).expect("and written to");
    directory
}

#[test]
fn the_version_is_that_of_the_server_it_stands_in_for() {
    let directory = with_config("");
    for words in ["-v", "--version", "version", "-p 5 -v"] {
        let (code, out, err) = run(&directory, words);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{words}");
        assert!(out.starts_with("nats-server: v2.15.1\ntidelock: v"), "{out}");
    }
}

#[test]
fn help_and_wrong_flags_print_the_usage_text_and_exit_with_0() {
    let directory = with_config("");
    for (words, message) in [
        ("-h", ""),
        ("help", ""),
        ("-bogus", "flag provided but not defined: -bogus\n"),
        ("-p abc", "invalid value \"abc\" for flag -p: parse error\n"),
    ] {
        let (code, out, err) = run(&directory, words);
        assert_eq!((code, err.as_str()), (Some(0), message), "{words}");
        assert!(out.contains("Usage: nats-server [options]"), "{out}");
    }
}

#[test]
fn what_cannot_be_done_is_said_on_standard_error_and_exits_with_1() {
    let directory = with_config("port: x\n");
    for (words, message) in [
        ("foo", "nats-server: unrecognized command: \"foo\"\n"),
        (
            "-t",
            "nats-server: must specify [-c, --config] option to check configuration file syntax\n",
        ),
        (
            "-c none.conf",
            "nats-server: open none.conf: no such file or directory\n",
        ),
        (
            "-t -c q.conf",
            "nats-server: q.conf:1:0: interface conversion: interface {} is string, not int64\n\n",
        ),
        (
            "-c q.conf",
            "nats-server: q.conf:1:0: interface conversion: interface {} is string, not int64\n\n",
        ),
        ("--signal foo", "nats-server: unknown signal \"foo\"\n"),
        (
            "--signal ldm=99999999",
            "nats-server: \nsignal \"ldm\" 99999999: no such process\n",
        ),
        (
            "--routes nats://a:1",
            "nats-server: solicited routes require cluster capabilities, e.g. --cluster\n",
        ),
    ] {
        let (code, out, err) = run(&directory, words);
        assert_eq!(
            (code, out.as_str(), err.as_str()),
            (Some(1), "", message),
            "{words}"
        );
    }
}

#[test]
fn a_valid_file_is_told_with_its_digest() {
    let directory = with_config("port: 4222");
    let (code, out, err) = run(&directory, "-t -c q.conf");
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert_eq!(
        err,
        "nats-server: configuration file q.conf is valid \
         (sha256:797533ebd0dfba7d34a0f9337ecf147e442871f48ddfd07ed751575a5737267e)\n"
    );
}

#[test]
fn what_nats_server_logs_as_fatal_is_logged_so() {
    let directory = with_config("accounts {$SYS {jetstream: enabled}}\njetstream: true");
    let (code, _, err) = run(&directory, "-c q.conf");
    assert_eq!(code, Some(1));
    assert!(
        err.ends_with(" [FTL] Not allowed to enable JetStream on the system account\n"),
        "{err}"
    );
}

#[test]
fn a_pid_file_that_cannot_be_written_ends_the_start_and_a_ports_file_does_not() {
    let directory = with_config("");
    let (code, _, err) = run(&directory, "-a 127.0.0.1 -p -1 -P nowhere/x.pid");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("Could not write pidfile"), "{err}");
    assert!(!err.contains("Server is ready"), "{err}");
    drop(Running::start(
        &directory,
        "-a 127.0.0.1 -p -1 --ports_file_dir nowhere",
    ));
}

/// A server that runs until this is dropped.
struct Running(Child);

impl Running {
    fn start(directory: &tempfile::TempDir, words: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidelock"))
            .args(words.split_whitespace())
            .current_dir(directory.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let log = child.stderr.take().expect("it is a pipe");
        let ready = BufReader::new(log)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("Server is ready"));
        assert!(ready, "{words}");
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_is_locked_for_as_long_as_its_server_runs() {
    let directory = with_config("");
    std::os::unix::fs::symlink("s", directory.path().join("link")).expect("a link can be made");
    let first = Running::start(&directory, "-a 127.0.0.1 -p -1 -js -sd s");
    for path in ["s", "./s/../s", "link"] {
        let (code, _, err) = run(&directory, &format!("-a 127.0.0.1 -p -1 -js -sd {path}"));
        assert_eq!(code, Some(1), "{path}: {err}");
        assert!(err.contains("is in use by another server"), "{path}: {err}");
    }
    drop(first);
    drop(Running::start(&directory, "-a 127.0.0.1 -p -1 -js -sd s"));
}
