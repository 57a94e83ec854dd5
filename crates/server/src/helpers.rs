//! Threads that wait so that workers do not: a few a worker for its disk, and one for each host name that has to be
//! resolved and each password whose check takes time.
//!
//! | thread | runs |
//! |---|---|
//! | `wal` | batches of the log |
//! | `spare` | segments of the log that are made for later: they are filled with zeros, and nothing waits behind that |
//! | `block` | pieces of blocks: one is put together while the disk takes another |
//! | `files` | everything else |
//!
//! Operations of one owner that run on one thread run in the order in which the worker gave them out. A piece has no
//! order among its like: a store waits for its pieces before it syncs, reads or removes their file. A lone small log
//! batch runs in the worker itself (DESIGN section 3, "A sync starts").

use crate::ThreadBegins;
use crate::shell::{Input, Mailbox};
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use tidelock_auth::PasswordCheck;
use tidelock_node::{ConnKey, IoJob, IoOwner, Worker};
use tidelock_record::{Disk, IoDone, IoOp, IoRequest};

/// A finished operation on its way back.
pub(crate) struct HelperInput {
    owner: IoOwner,
    done: IoDone,
}

/// The helper threads of one worker.
pub(crate) struct DiskHelpers {
    disk: Option<Arc<dyn Disk + Send + Sync>>,
    /// In the order of [`Thread`]; empty without a disk.
    threads: Vec<Sender<(IoJob, Mailbox)>>,
    /// Pieces given out.
    pieces: usize,
    log_jobs_out: usize,
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    Wal,
    Spare,
    Files,
    /// The first of two.
    Block,
}

const THREADS: [&str; 5] = ["wal", "spare", "files", "block-a", "block-b"];
const BLOCK_THREADS: usize = THREADS.len() - Thread::Block as usize;

impl DiskHelpers {
    /// Starts the threads of worker `number`; without a disk nothing is ever submitted.
    pub(crate) fn start(
        (number, thread_begins): (u16, ThreadBegins),
        disk: Option<Arc<dyn Disk + Send + Sync>>,
    ) -> io::Result<Self> {
        let spawn = |what: &str, disk: Arc<dyn Disk + Send + Sync>| -> io::Result<Sender<(IoJob, Mailbox)>> {
            let (sender, receiver) = channel();
            thread::Builder::new()
                .name(format!("{what}-{number}"))
                .spawn(move || {
                    thread_begins(number);
                    serve(&*disk, &receiver);
                })?;
            Ok(sender)
        };
        let threads = match &disk {
            Some(disk) => THREADS
                .iter()
                .map(|what| spawn(what, Arc::clone(disk)))
                .collect::<io::Result<_>>()?,
            None => Vec::new(),
        };
        Ok(Self {
            threads,
            pieces: 0,
            log_jobs_out: 0,
            disk,
        })
    }

    /// Gives out what the worker asked for. `true` if something ran at once, so that the turn's end must run again.
    pub(crate) fn submit(&mut self, jobs: &mut Vec<IoJob>, mailbox: &Mailbox, worker: &mut Worker) -> bool {
        let mut ran = false;
        for job in jobs.drain(..) {
            if job.inline && self.log_jobs_out == 0 {
                if let Some(disk) = &self.disk {
                    for request in job.requests {
                        let result = disk.run(&request.op);
                        worker.io_done(
                            job.owner,
                            IoDone {
                                token: request.token,
                                result,
                            },
                        );
                    }
                    ran = true;
                }
                continue;
            }
            if job.owner == IoOwner::Log {
                self.log_jobs_out += job.requests.len();
            }
            let thread = self.thread_of(&job);
            if let Some(thread) = self.threads.get(thread) {
                let _ = thread.send((job, mailbox.clone()));
            }
        }
        ran
    }

    /// The number of the thread that runs this.
    fn thread_of(&mut self, job: &IoJob) -> usize {
        let is_piece = |request: &IoRequest| matches!(request.op, IoOp::Write { sync: false, .. });
        match (job.owner, job.requests.as_slice()) {
            (IoOwner::Log, [only]) if matches!(only.op, IoOp::Create { .. }) => Thread::Spare as usize,
            (IoOwner::Log, _) => Thread::Wal as usize,
            (IoOwner::Store(_), requests) if requests.iter().all(is_piece) => {
                self.pieces = self.pieces.wrapping_add(1);
                Thread::Block as usize + self.pieces % BLOCK_THREADS
            }
            _ => Thread::Files as usize,
        }
    }

    /// Tells the worker of a finished operation.
    pub(crate) fn ended(&mut self, input: HelperInput, worker: &mut Worker) {
        if input.owner == IoOwner::Log {
            self.log_jobs_out = self.log_jobs_out.saturating_sub(1);
        }
        worker.io_done(input.owner, input.done);
    }
}

fn serve(disk: &dyn Disk, jobs: &Receiver<(IoJob, Mailbox)>) {
    while let Ok((job, mailbox)) = jobs.recv() {
        for request in job.requests {
            let result = disk.run(&request.op);
            let done = IoDone {
                token: request.token,
                result,
            };
            mailbox.send(Input::Disk(HelperInput {
                owner: job.owner,
                done,
            }));
        }
    }
}

/// Resolves `host:port` in a thread of its own and sends the first address back.
pub(crate) fn resolve(key: ConnKey, address: String, mailbox: Mailbox) {
    let sender = mailbox.clone();
    let work = move || {
        let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
        sender.send(Input::Resolved(key, found));
    };
    if thread::Builder::new()
        .name("resolve".to_owned())
        .spawn(work)
        .is_err()
    {
        mailbox.send(Input::Resolved(key, None));
    }
}

/// Runs a password check that takes time (bcrypt) in a thread of its own.
pub(crate) fn check_password(key: ConnKey, check: PasswordCheck, mailbox: Mailbox) {
    let sender = mailbox.clone();
    let work = move || sender.send(Input::Checked(key, check.run().map(Box::new)));
    if thread::Builder::new()
        .name("password".to_owned())
        .spawn(work)
        .is_err()
    {
        mailbox.send(Input::Checked(key, None));
    }
}
