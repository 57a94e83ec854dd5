//! The crate from outside: the language, the options of files and flags, and the syntax of flags.

#[cfg(test)]
mod flags;
#[cfg(test)]
mod language;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod options;
