//! The tree that a configuration file is read into.

use crate::error::Position;

/// A value and where it stands. The value of a map stands where its key does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// The value.
    pub(crate) value: Value,
    /// The place.
    pub(crate) at: Position,
}

/// A value of the configuration language.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `true`, `yes`, `on` and their opposites.
    Bool(bool),
    /// An integer, with its suffix worked in.
    Integer(i64),
    /// A number with a decimal point.
    Float(f64),
    /// A string of any form.
    Text(String),
    /// A time of the form `2026-01-01T00:00:00Z`.
    DateTime(String),
    /// `[…]`
    Array(Vec<Node>),
    /// `{…}`
    Map(Map),
}

impl Value {
    /// The kind of value, with its article.
    #[must_use]
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::DateTime(_) => "a time",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
        }
    }

    /// The type of value as nats-server names it in its messages: the one that its parser gives it.
    #[must_use]
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::Integer(_) => "int64",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::DateTime(_) => "time.Time",
            Self::Array(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
        }
    }

    /// A value as a message shows it.
    #[must_use]
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => text.clone(),
            Self::DateTime(_) | Self::Array(_) | Self::Map(_) => self.kind().to_owned(),
        }
    }

    /// Values in this one, itself included.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Array(nodes) => 1 + nodes.iter().map(|node| node.value.count()).sum::<usize>(),
            Self::Map(map) => {
                1 + map
                    .entries
                    .iter()
                    .map(|entry| entry.node.value.count())
                    .sum::<usize>()
            }
            Self::Bool(_) | Self::Integer(_) | Self::Float(_) | Self::Text(_) | Self::DateTime(_) => 1,
        }
    }
}

/// Keys and values in the order of the file; each key once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Map {
    entries: Vec<Entry>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The key as it is written.
    pub(crate) key: String,
    /// The value.
    pub(crate) node: Node,
    /// Whether a `$key` took its value from here, so that the key need not be a known one.
    pub(crate) used_as_variable: bool,
}

impl Map {
    /// The entries in the order of the file.
    #[must_use]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether there is no entry.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry; one of the same key gives way to it.
    pub(crate) fn insert(&mut self, key: String, node: Node) {
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry {
            key,
            node,
            used_as_variable: false,
        });
    }

    /// The value of a key that is used as a variable.
    pub(crate) fn use_variable(&mut self, key: &str) -> Option<&Node> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        entry.used_as_variable = true;
        Some(&entry.node)
    }

    /// Takes over the entries of an included file.
    pub(crate) fn merge(&mut self, other: Self) {
        for entry in other.entries {
            self.entries.retain(|known| known.key != entry.key);
            self.entries.push(entry);
        }
    }
}
