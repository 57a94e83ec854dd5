//! A file system that can lose power.
//!
//! ```text
//! unsync [--lose all|some] [--seed N] [--sync-ms N] [--folders own|above] BACKING MOUNTPOINT
//! unsync --probe
//! ```
//!
//! It shows the folder `BACKING/tree` at MOUNTPOINT and keeps in memory what was not synced, as a real one does, until it is told by a
//! line on its standard input, each of which it answers with one line:
//!
//! ```text
//! cut [all | some SEED]   the power goes: what was not synced is forgotten, and every request fails
//! on                      the power is back
//! ```
//!
//! `--lose` and `--seed` say what a `cut` without words does. `--sync-ms` is how long a sync takes; one that was not over when the
//! power went has not happened. `--folders own` has the sync of a folder make nothing durable but the names in it. At the end of the
//! input everything is synced and unmounted. `--probe` only tells, by its exit code and a line, whether mounting is possible here.

mod backing;
mod chance;
mod content;
mod loss;
mod mounted;
mod names;
#[cfg(test)]
mod tests;
mod volume;

use crate::chance::Chance;
use crate::loss::Loss;
use crate::mounted::Mounted;
use crate::names::Above;
use fuser::{BackgroundSession, Config, MountOption, Session};
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Requests that are worked on at a time; a sync takes one of them for as long as it lasts.
const THREADS: usize = 8;

struct Flags {
    some: bool,
    chance: Chance,
    sync_takes: Duration,
    above: Above,
    probe: bool,
    places: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let told = flags().and_then(|flags| match flags.places.as_slice() {
        [] if flags.probe => probe(),
        [backing, mountpoint] => run(&flags, backing, mountpoint),
        _ => Err("two folders are asked for: the backing one and where to mount".into()),
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("unsync: {e}");
            ExitCode::FAILURE
        }
    }
}

fn flags() -> Result<Flags, Box<dyn Error>> {
    use lexopt::prelude::*;
    let mut flags = Flags {
        some: false,
        chance: Chance::new(0),
        sync_takes: Duration::ZERO,
        above: Above::Own,
        probe: false,
        places: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(word) = parser.next()? {
        match word {
            Long("lose") => flags.some = choose(&parser.value()?, ["all", "some"])?,
            Long("seed") => flags.chance = Chance::new(parser.value()?.parse()?),
            Long("sync-ms") => flags.sync_takes = Duration::from_millis(parser.value()?.parse()?),
            Long("folders") => flags.above = above(choose(&parser.value()?, ["own", "above"])?),
            Long("probe") => flags.probe = true,
            Value(place) => flags.places.push(place.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(flags)
}

fn above(follows: bool) -> Above {
    if follows { Above::Follows } else { Above::Own }
}

/// Whether it is the second of two words.
fn choose(word: &OsString, words: [&str; 2]) -> Result<bool, String> {
    let found = words.iter().position(|w| word == w);
    found
        .map(|at| at == 1)
        .ok_or_else(|| format!("{word:?} is neither {} nor {}", words[0], words[1]))
}

fn run(flags: &Flags, backing: &Path, mountpoint: &Path) -> Result<(), Box<dyn Error>> {
    let volume = backing::load(backing, flags.above)?;
    let mounted = Mounted::new(volume, backing.to_owned(), flags.sync_takes);
    let session = mount(mounted.clone(), mountpoint)?;
    answer(&format!("mounted {}", mountpoint.display()))?;
    let mut chance = flags.chance.clone();
    for line in io::stdin().lock().lines() {
        let words: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = command(&mounted, &words, flags.some, &mut chance);
        answer(&text.unwrap_or_else(|e| format!("error: {e}")))?;
    }
    unmount(session, mountpoint)?;
    mounted.volume(|volume| backing::save(backing, volume))?;
    Ok(())
}

fn command(mounted: &Mounted, words: &[&str], some: bool, chance: &mut Chance) -> Result<String, String> {
    let loss = match words {
        ["on"] => {
            mounted.restore();
            return Ok("on".to_owned());
        }
        ["cut"] if some => Loss::Some(chance.split()),
        ["cut"] => Loss::All,
        ["cut", rest @ ..] => Loss::parse(rest)?,
        other => return Err(format!("{:?} is neither `cut` nor `on`", other.join(" "))),
    };
    let lost = mounted.cut(loss).map_err(|e| e.to_string())?;
    Ok(format!("cut {lost}"))
}

fn answer(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

fn mount(mounted: Mounted, mountpoint: &Path) -> Result<BackgroundSession, Box<dyn Error>> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("unsync".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(THREADS);
    let session = Session::new(mounted, mountpoint, &config).and_then(Session::spawn);
    session.map_err(|e| format!("cannot mount at {}: {e}", mountpoint.display()).into())
}

/// Files may still be open: their processes get errors from now on.
fn unmount(session: BackgroundSession, mountpoint: &Path) -> Result<(), Box<dyn Error>> {
    rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH)?;
    drop(session);
    Ok(())
}

fn probe() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("unsync-probe-{}", std::process::id()));
    let (backing, mountpoint) = (folder.join("backing"), folder.join("mounted"));
    std::fs::create_dir_all(&mountpoint)?;
    let tried = try_mount(&backing, &mountpoint);
    std::fs::remove_dir_all(&folder)?;
    tried
}

fn try_mount(backing: &Path, mountpoint: &Path) -> Result<(), Box<dyn Error>> {
    let mounted = Mounted::new(
        backing::load(backing, Above::Own)?,
        backing.to_owned(),
        Duration::ZERO,
    );
    unmount(mount(mounted, mountpoint)?, mountpoint)
}
