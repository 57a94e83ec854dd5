//! The binary: reads flags and configuration, sets up the log, and runs the server.

mod log;
mod memory;
mod signal;
mod sources;

use std::io::{self, Write as _};
use std::process::ExitCode;

use tidelock_base::{COMPATIBLE_VERSION, TIDELOCK_VERSION};
use tidelock_conf::{Flag, Flags, LoadError, Loaded, Options};

use crate::sources::System;

/// Every message on standard error begins with this name, whatever the file is called: scripts look for it.
const NAME: &str = "nats-server";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (flags, rest) = match tidelock_conf::parse_flags(&words) {
        Ok(parsed) => parsed,
        Err(error) => {
            complain(&error.to_string());
            print(&tidelock_conf::usage(NAME));
            // As nats-server does, and as Go's `flag` package has it for a request for help.
            return ExitCode::SUCCESS;
        }
    };
    let done = information(&flags, &rest)
        .or_else(|| action(&flags))
        .unwrap_or_else(|| start(&flags));
    match done {
        Ok(code) => code,
        Err(text) => {
            complain(&format!("{NAME}: {text}"));
            ExitCode::FAILURE
        }
    }
}

/// What is only asked for, or cannot be understood.
fn information(flags: &Flags, rest: &[String]) -> Option<Result<ExitCode, String>> {
    let word = rest.first().map(String::as_str);
    if flags.is_on(Flag::Version) || word == Some("version") {
        print(&format!(
            "{NAME}: v{COMPATIBLE_VERSION}\ntidelock: v{TIDELOCK_VERSION}\n"
        ));
    } else if flags.is_on(Flag::Help) || word == Some("help") {
        print(&tidelock_conf::usage(NAME));
    } else if flags.is_on(Flag::HelpTls) {
        print("TLS is not supported by this version of Tidelock yet.\n");
    } else {
        return word.map(|word| Err(format!("unrecognized command: {word:?}")));
    }
    Some(Ok(ExitCode::SUCCESS))
}

/// What is done without starting a server: signalling another one, checking a file.
fn action(flags: &Flags) -> Option<Result<ExitCode, String>> {
    if let Some(command) = flags.text(Flag::Signal) {
        return Some(signal::send(command).map(|()| ExitCode::SUCCESS));
    }
    if !flags.is_on(Flag::Test) {
        return None;
    }
    let Some(path) = flags.text(Flag::Config).filter(|path| !path.is_empty()) else {
        return Some(Err(
            "must specify [-c, --config] option to check configuration file syntax".to_owned(),
        ));
    };
    Some(match tidelock_conf::check_file(path, &System) {
        Ok(digest) => {
            complain(&format!("{NAME}: configuration file {path} is valid ({digest})"));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(error.to_string()),
    })
}

/// Starts the server and stays until it ends.
fn start(flags: &Flags) -> Result<ExitCode, String> {
    let Loaded { options, warnings } = match tidelock_conf::load(flags, &System) {
        Ok(loaded) => loaded,
        Err(LoadError::Fatal(text)) => return fatal(&text),
        Err(error) => return Err(error.to_string()),
    };
    for warning in warnings {
        complain(&warning.to_string());
    }
    log::start(&options.log).map_err(|error| format!("{error:#}"))?;
    match serve(options) {
        Ok(code) => Ok(code),
        Err(error) => {
            tracing::error!(target: log::FATAL, "{error:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Ends with a line in the log, though none is set up yet: what it should be is not known without options.
fn fatal(text: &str) -> Result<ExitCode, String> {
    log::start(&tidelock_conf::LogOptions::default()).map_err(|error| format!("{error:#}"))?;
    tracing::error!(target: log::FATAL, "{text}");
    Ok(ExitCode::FAILURE)
}

/// Hands over to the server; the exit code is its own.
fn serve(options: Options) -> anyhow::Result<ExitCode> {
    let hooks = tidelock_server::Hooks {
        reopen_log: Box::new(log::reopen),
        thread_begins: memory::join_arena,
    };
    tidelock_server::run(options, &hooks).map(|code| ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}
