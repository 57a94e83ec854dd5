//! The workload: actors that use the cluster as clients do, and one that breaks it.

mod auditor;
mod core;
mod echo;
mod feeder;
mod keeper;
mod keys;
mod nemesis;
mod operator;
mod publisher;
mod puller;
mod setup;

pub(crate) use auditor::Auditor;
pub(crate) use core::Core;
pub(crate) use echo::Echo;
pub(crate) use feeder::Feeder;
pub(crate) use keeper::Keeper;
pub(crate) use keys::Keys;
pub(crate) use nemesis::Nemesis;
pub(crate) use operator::Operator;
pub(crate) use publisher::Publisher;
pub(crate) use puller::{MAX_ACK_PENDING, Puller};
pub(crate) use setup::Setup;

use crate::client::{ClientId, Heard, ReplyTo};
use crate::history::History;
use crate::world::World;
use std::time::Duration;

/// A stream of publishes that keeps everything.
pub(crate) const EVENTS: &str = "EV";
/// A work queue.
pub(crate) const WORK: &str = "WORK";
/// A stream in memory that keeps everything; it is made once everything is healed.
pub(crate) const MEMORY: &str = "MEM";
/// A bucket of keys.
pub(crate) const BUCKET: &str = "KV_b";

/// Where an actor acts.
pub(crate) struct Scene<'a> {
    /// Its number.
    pub(crate) me: usize,
    pub(crate) world: &'a mut World,
    pub(crate) history: &'a mut History,
}

/// One part of the workload.
pub(crate) trait Actor {
    /// Begins.
    fn start(&mut self, scene: &mut Scene<'_>);

    /// One of its connections has heard something.
    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard);

    /// A time that it wanted to be told of has come.
    fn timer(&mut self, scene: &mut Scene<'_>, tag: u64);

    /// It is to begin nothing new.
    fn stop(&mut self) {}

    /// Whether it has done what it has to do; actors that go on until they are stopped never have.
    fn is_done(&self) -> bool {
        false
    }

    /// Whether it expects answers, so that it must get some once nothing is broken any more.
    fn expects_answers(&self) -> bool {
        false
    }
}

/// An actor's connection, which moves from node to node as connections break.
#[derive(Debug, Default)]
pub(crate) struct Line {
    client: Option<ClientId>,
    ready: bool,
    next_token: u64,
}

impl Line {
    /// Connects to a node, and leaves the one before.
    pub(crate) fn open(&mut self, scene: &mut Scene<'_>, node: usize) {
        if let Some(old) = self.client.take() {
            scene.world.close(old);
        }
        self.ready = false;
        self.client = Some(scene.world.connect(scene.me, node));
    }

    /// Takes the connection's own news; answers whether something is left for the actor.
    pub(crate) fn hears(&mut self, client: ClientId, heard: &Heard) -> bool {
        if self.client != Some(client) {
            return false;
        }
        match heard {
            Heard::Ready => self.ready = true,
            Heard::Closed => {
                self.client = None;
                self.ready = false;
            }
            Heard::Reply(_) | Heard::Message(_) => {}
        }
        true
    }

    /// The connection, once it can be used.
    pub(crate) fn ready(&self) -> Option<ClientId> {
        self.client.filter(|_| self.ready)
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.client.is_some()
    }

    /// Sends a request; answers its number.
    pub(crate) fn request(
        &mut self,
        scene: &mut Scene<'_>,
        subject: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Option<(ClientId, u64)> {
        let client = self.ready()?;
        self.next_token += 1;
        scene
            .world
            .publish(client, subject, &ReplyTo::Inbox(self.next_token), headers, body);
        Some((client, self.next_token))
    }
}

impl Scene<'_> {
    pub(crate) fn after(&mut self, time: Duration, tag: u64) {
        let me = self.me;
        self.world.after(me, time, tag);
    }

    /// The actor got an answer that counts.
    pub(crate) fn answered(&mut self) {
        self.history.answered.insert(self.me, self.world.now());
    }
}
