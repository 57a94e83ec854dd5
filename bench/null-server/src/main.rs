//! A server that does nothing: it answers in the forms of NATS and JetStream without routing, storing or checking, so
//! that what a load generator reaches against it is the generator's own bound. Benchmarks show that beside each row.
//!
//! `null-server -c FILE` takes the address from the line `listen: "HOST:PORT"` and ignores the rest.
//!
//! One thread a connection. A publish that somebody subscribed to by its exact subject is passed on; one with a reply
//! subject and no subscriber is taken for a publish into a stream and acknowledged; requests to the JetStream API get
//! canned answers, pulls as many messages as they ask for. What is not needed for that is ignored.

mod api;
mod connection;
mod hub;

use hub::Hub;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let address = address()?;
    let listener = TcpListener::bind(&address).map_err(|e| format!("{address}: {e}"))?;
    let hub = Arc::new(Hub::default());
    for stream in listener.incoming() {
        let stream = stream.map_err(|e| e.to_string())?;
        let hub = Arc::clone(&hub);
        thread::spawn(move || {
            // However a connection ends, nobody waits for it.
            let _ = connection::serve(&hub, stream);
        });
    }
    Ok(())
}

/// The address in the configuration file that the arguments name.
fn address() -> Result<String, String> {
    let mut args = std::env::args().skip(1);
    let (Some("-c"), Some(path)) = (args.next().as_deref(), args.next()) else {
        return Err("usage: null-server -c FILE".to_owned());
    };
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let mut lines = text.lines().map(str::trim);
    let listen = lines.find_map(|line| line.strip_prefix("listen:"));
    let listen = listen.ok_or_else(|| format!("{path}: no line begins with listen:"))?;
    Ok(listen.trim().trim_matches('"').to_owned())
}
