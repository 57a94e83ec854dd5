//! The files and the environment that a configuration is read from.

use std::io;

use tidelock_conf::Sources;

/// The system's own.
pub(crate) struct System;

impl Sources for System {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| reason(&error))
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }
}

/// The system's words for an error as nats-server has them: without the error's number and in lower case.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there() {
        assert_eq!(
            System.read("/nonexistent.conf"),
            Err("no such file or directory".to_owned())
        );
        assert_eq!(System.read("/"), Err("is a directory".to_owned()));
    }
}
