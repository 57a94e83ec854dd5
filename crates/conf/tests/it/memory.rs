//! Files and an environment in memory.

use std::collections::BTreeMap;

use tidelock_conf::{LoadError, Loaded, Sources, check_file, load, parse_flags};

/// Named files and variables.
#[derive(Default)]
pub(crate) struct Memory {
    files: BTreeMap<String, String>,
    variables: BTreeMap<String, String>,
}

impl Memory {
    /// One file, `q.conf`.
    pub(crate) fn of(text: &str) -> Self {
        Self::default().file("q.conf", text)
    }

    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.to_owned());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// What `-t -c q.conf` prints: the digest, or the error.
    pub(crate) fn check(&self) -> String {
        match check_file("q.conf", self) {
            Ok(digest) => digest,
            Err(error) => error.to_string(),
        }
    }

    /// The options of `words` on the command line.
    pub(crate) fn load(&self, words: &str) -> Result<Loaded, LoadError> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let (flags, rest) = parse_flags(&words).unwrap();
        assert!(rest.is_empty());
        load(&flags, self)
    }
}

impl Sources for Memory {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let text = self.files.get(path).ok_or("no such file or directory")?;
        Ok(text.clone().into_bytes())
    }

    fn env(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }
}
