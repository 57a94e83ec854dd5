//! Threads that wait so that workers do not: one a worker for the write-ahead log, one for all other files, and one
//! for each host name that has to be resolved and each password whose check takes time.
//!
//! Operations of one owner run in the order in which the worker gave them out: log batches on the log thread, all
//! others on the other one. A lone small log batch runs in the worker itself (DESIGN section 3, "A sync starts").
//! A segment that the log has made for later is filled with zeros on the other thread, so that no batch waits behind it.

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
    log: Option<Sender<(IoJob, Mailbox)>>,
    files: Option<Sender<(IoJob, Mailbox)>>,
    log_jobs_out: usize,
}

impl DiskHelpers {
    /// Starts the threads of worker `number`; without a disk nothing is ever submitted.
    pub(crate) fn start(number: u16, disk: Option<Arc<dyn Disk + Send + Sync>>) -> io::Result<Self> {
        let spawn = |what: &str| -> io::Result<Option<Sender<(IoJob, Mailbox)>>> {
            let Some(disk) = disk.clone() else { return Ok(None) };
            let (sender, receiver) = channel();
            thread::Builder::new()
                .name(format!("{what}-{number}"))
                .spawn(move || serve(&*disk, &receiver))?;
            Ok(Some(sender))
        };
        Ok(Self {
            log: spawn("wal")?,
            files: spawn("files")?,
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
            let makes_a_file = matches!(
                job.requests.as_slice(),
                [IoRequest {
                    op: IoOp::Create { .. },
                    ..
                }]
            );
            let thread = if job.owner == IoOwner::Log && !makes_a_file {
                &self.log
            } else {
                &self.files
            };
            if let Some(thread) = thread {
                let _ = thread.send((job, mailbox.clone()));
            }
        }
        ran
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
