//! The configuration language, the flags, and the options they come to.
//!
//! One pipeline: [`load`] reads the file into a tree, the tree into settings, works the flags in over them, puts
//! defaults where nothing was given, and checks the whole once. What comes out is an [`Options`], which nothing
//! changes afterwards. Files and the environment are reached through [`Sources`] alone.

mod apply;
mod digest;
mod duration;
mod error;
mod file;
mod finish;
mod flags;
mod options;
mod parse;
mod read;
mod scan;
mod value;

pub use error::{LoadError, Position, Problem};
pub use flags::{FLAGS, Flag, FlagDef, FlagError, FlagGroup, FlagKind, Flags, parse_flags, usage};
pub use options::{
    AccountOptions, Advertise, ClusterOptions, ConfigFile, ConnectionLimits, HostPort, JetStreamLimits,
    JetStreamOptions, JetStreamServerLimits, LogOptions, MonitorOptions, Options, RouteCredentials, RouteUrl,
    SyncInterval,
};

use crate::file::Settings;
use crate::read::Reader;

/// What a configuration is read from.
pub trait Sources {
    /// The content of a file.
    ///
    /// # Errors
    /// The reason in the system's words (`no such file or directory`), without the path.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// The value of an environment variable.
    fn env(&self, name: &str) -> Option<String>;
}

/// Options, and what is worth a warning on standard error before the server starts.
#[derive(Debug)]
pub struct Loaded {
    /// The options.
    pub options: Options,
    /// Warnings in the order of the file.
    pub warnings: Vec<Problem>,
}

/// Reads the configuration file, if the flags name one, and the flags.
///
/// # Errors
/// [`LoadError::Syntax`] if the file cannot be read as one, [`LoadError::Problems`] if keys or values are wrong,
/// [`LoadError::Check`] and [`LoadError::Fatal`] if flags are wrong or options contradict one another.
pub fn load(flags: &Flags, sources: &dyn Sources) -> Result<Loaded, LoadError> {
    let (mut settings, config_file, warnings) = match flags.text(Flag::Config).filter(|path| !path.is_empty())
    {
        Some(path) => {
            let file = read_file(path, sources)?;
            (
                file.settings,
                Some(ConfigFile {
                    path: path.to_owned(),
                    digest: file.digest,
                }),
                file.warnings,
            )
        }
        None => (Settings::default(), None, Vec::new()),
    };
    apply::apply(flags, &mut settings).map_err(LoadError::Check)?;
    let options = finish::finish(settings, config_file)?;
    Ok(Loaded { options, warnings })
}

/// Checks a configuration file for itself (`-t`): its digest, `sha256:<hex>`. Warnings count as errors; flags and
/// what concerns several keys are not looked at.
///
/// # Errors
/// As [`load`].
pub fn check_file(path: &str, sources: &dyn Sources) -> Result<String, LoadError> {
    let file = read_file(path, sources)?;
    if file.warnings.is_empty() {
        Ok(file.digest)
    } else {
        Err(LoadError::Problems(file.warnings))
    }
}

struct File {
    settings: Settings,
    digest: String,
    warnings: Vec<Problem>,
}

fn read_file(path: &str, sources: &dyn Sources) -> Result<File, LoadError> {
    let map = parse::parse_file(path, sources).map_err(LoadError::Syntax)?;
    let mut reader = Reader::default();
    if map.is_empty() {
        let reason = format!("{path}: config has no values or is empty");
        reader.warnings.push(Problem { at: None, reason });
    }
    let settings = file::read(&map, &mut reader);
    if reader.problems.is_empty() {
        return Ok(File {
            settings,
            digest: digest::digest(&map),
            warnings: reader.warnings,
        });
    }
    let problems = reader.warnings.into_iter().chain(reader.problems).collect();
    Err(LoadError::Problems(problems))
}

/// Reads arbitrary bytes as a configuration file. Whatever they are, it must return.
pub fn fuzz(data: &[u8]) {
    /// Every file has the same content, so that includes are met too.
    struct Same<'a>(&'a [u8]);

    impl Sources for Same<'_> {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            Ok(self.0.to_vec())
        }

        fn env(&self, name: &str) -> Option<String> {
            name.get(1..).map(str::to_owned)
        }
    }

    let sources = Same(data);
    let _ = check_file("fuzz.conf", &sources);
    if let Ok(file) = read_file("fuzz.conf", &sources) {
        let _ = finish::finish(file.settings, None);
    }
}
