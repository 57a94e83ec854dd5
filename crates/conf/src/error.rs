//! What can be wrong with a configuration, in the words and the order in which it is printed.

use std::fmt;
use std::sync::Arc;

/// A place in a file. The column counts bytes from the line's start, from 0 on the first line and from 1 on the
/// others, as in nats-server's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Something wrong, or worth a warning, at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where; `None` if the whole file or a flag is meant.
    pub at: Option<Position>,
    /// What, and what was expected.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// Why a configuration cannot be used. The text is what follows `nats-server: ` on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The file cannot be read, or its text is not of the language.
    Syntax(String),
    /// Keys or values are wrong; each on a line of its own.
    Problems(Vec<Problem>),
    /// Options contradict one another.
    Check(String),
    /// As [`Self::Check`], but nats-server reports it as a fatal line of the log.
    Fatal(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) | Self::Check(text) | Self::Fatal(text) => f.write_str(text),
            Self::Problems(problems) => problems.iter().try_for_each(|problem| writeln!(f, "{problem}")),
        }
    }
}

impl std::error::Error for LoadError {}
