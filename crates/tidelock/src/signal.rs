//! `--signal cmd[=pid]`: signals a running server.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Names that a server's process may have.
const PROCESS_NAMES: &[&str] = &["nats-server", "tidelock"];

/// Sends the signal that `command` asks for. The text of an error is what follows `nats-server: `.
///
/// # Errors
/// The command is none, there is no such process, or there are several to choose from.
pub(crate) fn send(command: &str) -> Result<(), String> {
    let (word, target) = match command.split_once('=') {
        Some((word, target)) => (word, target),
        None => (command, ""),
    };
    let signal = signal_of(word)?;
    let pids = match target {
        "" => vec![the_only(&running()?)?],
        _ => match target.strip_suffix('*') {
            Some(start) => matching(&running()?, start)?,
            None => vec![pid_of(target)?],
        },
    };
    let failures: String = pids
        .into_iter()
        .filter_map(|pid| {
            kill_process(pid, signal)
                .err()
                .map(|error| failure(word, pid, error))
        })
        .collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures)
    }
}

fn signal_of(word: &str) -> Result<Signal, String> {
    match word {
        "stop" => Ok(Signal::KILL),
        "quit" => Ok(Signal::INT),
        "term" => Ok(Signal::TERM),
        "reopen" => Ok(Signal::USR1),
        "ldm" => Ok(Signal::USR2),
        "reload" => Ok(Signal::HUP),
        _ => Err(format!("unknown signal {word:?}")),
    }
}

fn failure(word: &str, pid: Pid, error: Errno) -> String {
    let reason = match error {
        Errno::SRCH => "no such process".to_owned(),
        Errno::PERM => "operation not permitted".to_owned(),
        other => other.to_string(),
    };
    format!("\nsignal {word:?} {}: {reason}", pid.as_raw_pid())
}

/// A pid, or the path of a file that holds one.
fn pid_of(target: &str) -> Result<Pid, String> {
    let number = |text: &str| {
        text.trim()
            .parse()
            .ok()
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw)
    };
    if let Some(pid) = number(target) {
        return Ok(pid);
    }
    match std::fs::read_to_string(target) {
        Ok(text) => number(&text).ok_or_else(|| format!("invalid pid: {}", text.trim())),
        Err(_) => Err(format!("invalid pid: {target}")),
    }
}

fn the_only(running: &[Pid]) -> Result<Pid, String> {
    match running {
        [] => Err("no nats-server processes running".to_owned()),
        [pid] => Ok(*pid),
        several => {
            let list: Vec<_> = several.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
            Err(format!(
                "multiple nats-server processes running:\n{}",
                list.join("\n")
            ))
        }
    }
}

fn matching(running: &[Pid], start: &str) -> Result<Vec<Pid>, String> {
    let found: Vec<_> = running
        .iter()
        .copied()
        .filter(|pid| pid.as_raw_pid().to_string().starts_with(start))
        .collect();
    if found.is_empty() {
        Err("no nats-server processes running".to_owned())
    } else {
        Ok(found)
    }
}

/// Servers that run, without this process.
#[cfg(target_os = "linux")]
fn running() -> Result<Vec<Pid>, String> {
    const UNRESOLVED: &str = "unable to resolve pid, try providing one";
    let this = std::process::id();
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")
        .map_err(|_| UNRESOLVED.to_owned())?
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != this && is_server(*pid))
        .collect();
    pids.sort_unstable();
    Ok(pids
        .into_iter()
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect())
}

/// Whether the process has a server's name and is no zombie, which no signal reaches.
#[cfg(target_os = "linux")]
fn is_server(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let alive = std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    alive && PROCESS_NAMES.contains(&name.trim_end())
}

/// Servers that run, without this process.
#[cfg(not(target_os = "linux"))]
fn running() -> Result<Vec<Pid>, String> {
    const UNRESOLVED: &str = "unable to resolve pid, try providing one";
    let pattern = format!("^({})$", PROCESS_NAMES.join("|"));
    let output = std::process::Command::new("pgrep")
        .args(["-x", &pattern])
        .output()
        .map_err(|_| UNRESOLVED.to_owned())?;
    let this = std::process::id().to_string();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let others = text.lines().filter(|line| *line != this);
    Ok(others
        .filter_map(|line| Pid::from_raw(line.trim().parse().ok()?))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pids(raw: &[i32]) -> Vec<Pid> {
        raw.iter().map(|pid| Pid::from_raw(*pid).unwrap()).collect()
    }

    #[test]
    fn words_and_targets_are_checked_before_anything_is_sent() {
        for (command, error) in [
            ("foo", "unknown signal \"foo\""),
            ("", "unknown signal \"\""),
            ("=5", "unknown signal \"\""),
            ("ldm=abc", "invalid pid: abc"),
            ("ldm=1x", "invalid pid: 1x"),
            ("ldm=-5", "invalid pid: -5"),
            ("ldm=0", "invalid pid: 0"),
            ("reload=/nonexistent/file", "invalid pid: /nonexistent/file"),
        ] {
            assert_eq!(send(command), Err(error.to_owned()), "{command}");
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        // Above the largest pid of Linux and macOS.
        let error = send("ldm=99999999").unwrap_err();
        assert_eq!(error, "\nsignal \"ldm\" 99999999: no such process");
    }

    #[test]
    fn a_pid_may_stand_in_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        std::fs::write(&path, "99999999\n").unwrap();
        let error = send(&format!("quit={}", path.display())).unwrap_err();
        assert_eq!(error, "\nsignal \"quit\" 99999999: no such process");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(
            send(&format!("quit={}", path.display())),
            Err("invalid pid: abc".to_owned())
        );
    }

    #[test]
    fn without_a_pid_there_must_be_one_server() {
        assert_eq!(the_only(&[]), Err("no nats-server processes running".to_owned()));
        assert_eq!(the_only(&pids(&[7])), Ok(pids(&[7])[0]));
        assert_eq!(
            the_only(&pids(&[7, 8])),
            Err("multiple nats-server processes running:\n7\n8".to_owned())
        );
    }

    #[test]
    fn a_star_stands_for_the_rest_of_a_pid() {
        let running = pids(&[12, 123, 21]);
        assert_eq!(matching(&running, "12"), Ok(pids(&[12, 123])));
        assert_eq!(matching(&running, ""), Ok(running.clone()));
        assert!(matching(&running, "9").is_err());
    }
}
