//! Hotlists: the experts that earlier runs of a model used most, to warm the next start with.
//!
//! A hotlist is a hint. It fills slots that are free and nothing else, pins nothing, and cannot change a result. Order-by-use
//! policies learn from it that the first expert was used `1 + 31` times and the last one once.
//!
//! File, little-endian: magic `CPHOT\0\0\0`, u32 version (1), u32 count, 32 bytes fingerprint of the model; per expert u32 layer, u32 expert, u32
//! uses, most used first; at the end u32 CRC-32C of all before.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use coldpress_workers::Team;

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry};
use crate::pack::Fingerprint;
use crate::store::{ExpertStore, Residency};

const MAGIC: &[u8; 8] = b"CPHOT\0\0\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 12;
/// Experts in a hotlist; colder ones are forgotten.
const ENTRIES_MAX: usize = 16_384;
/// What the seed of the hottest expert is above that of the coldest.
const SEED_RANGE: usize = 31;

/// Experts with their uses, most used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hotlist {
    entries: Vec<(ExpertKey, u32)>,
}

impl Hotlist {
    /// Experts with their uses, most used first.
    pub fn entries(&self) -> &[(ExpertKey, u32)] {
        &self.entries
    }

    /// The bytes of a hotlist file.
    pub fn to_bytes(&self, fingerprint: &Fingerprint) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        bytes.extend_from_slice(fingerprint.as_bytes());
        for (key, uses) in &self.entries {
            for value in [key.layer, key.expert, *uses] {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        let check = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the hotlist of the model with `fingerprint` and `geometry`.
    ///
    /// # Errors
    /// A sentence that says why the file is of no use.
    pub fn read(path: &Path, fingerprint: &Fingerprint, geometry: &Geometry) -> Result<Self, String> {
        let longest = HEADER_BYTES + ENTRIES_MAX * ENTRY_BYTES + 4;
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(longest as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        Self::from_bytes(&bytes, fingerprint, geometry)
    }

    fn from_bytes(bytes: &[u8], fingerprint: &Fingerprint, geometry: &Geometry) -> Result<Self, String> {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().expect("4 bytes were taken")))
        };
        if bytes.get(..8) != Some(MAGIC) || number(8) != Some(VERSION) {
            return Err("it is no hotlist of this version".to_owned());
        }
        let count = number(12).unwrap_or(0) as usize;
        if count > ENTRIES_MAX || bytes.len() != HEADER_BYTES + count * ENTRY_BYTES + 4 {
            return Err(format!("{} bytes cannot be {count} experts", bytes.len()));
        }
        let end = bytes.len() - 4;
        if number(end) != Some(crc32c::crc32c(&bytes[..end])) {
            return Err("its checksum is wrong".to_owned());
        }
        if bytes[16..48] != fingerprint.as_bytes()[..] {
            return Err("it belongs to another model".to_owned());
        }
        let mut listed = vec![false; geometry.record_count()];
        let mut entries = Vec::with_capacity(count);
        for at in (HEADER_BYTES..end).step_by(ENTRY_BYTES) {
            let [layer, expert, uses] = [0, 4, 8].map(|offset| number(at + offset).unwrap_or(u32::MAX));
            let known = (layer as usize) < geometry.layer_count()
                && (expert as usize) < geometry.expert_count(layer as usize);
            let key = ExpertKey { layer, expert };
            if !known || std::mem::replace(&mut listed[geometry.record_index(key)], true) {
                return Err(format!("{key} cannot be in it"));
            }
            entries.push((key, uses));
        }
        Ok(Self { entries })
    }
}

impl ExpertStore {
    /// The experts used since the store was opened, together with half of what `earlier` says.
    pub fn hotlist(&self, earlier: &Hotlist) -> Hotlist {
        let mut uses = self.uses.clone();
        for (key, before) in &earlier.entries {
            let uses = &mut uses[self.geometry.record_index(*key)];
            *uses = uses.saturating_add(before / 2);
        }
        let mut entries: Vec<(ExpertKey, u32)> =
            self.geometry.keys().zip(uses).filter(|(_, uses)| *uses > 0).collect();
        entries.sort_by_key(|(_, uses)| std::cmp::Reverse(*uses));
        entries.truncate(ENTRIES_MAX);
        Hotlist { entries }
    }

    /// Reads the first experts of `hotlist` into slots that are free, layer by layer, while `go_on` says so. Returns how many
    /// were read. They count neither as hits nor as misses nor as uses.
    ///
    /// # Errors
    /// The first read or check that fails; the store goes on without what is missing.
    pub fn warm(
        &mut self,
        team: &Team<'_>,
        hotlist: &Hotlist,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<usize, ExpertError> {
        if !matches!(self.residency, Residency::Streamed { .. } | Residency::Paged { .. }) {
            return Ok(0);
        }
        let absent =
            |(key, _): &&(ExpertKey, u32)| self.slot_of_record[self.geometry.record_index(*key)].is_none();
        let chosen: Vec<ExpertKey> =
            hotlist.entries.iter().filter(absent).take(self.free_slots.len()).map(|(key, _)| *key).collect();
        let mut read = 0;
        self.uncounted(|store| {
            for layer in 0..store.geometry.layer_count() {
                if !go_on() {
                    break;
                }
                // A later place in a visit is a later use: the hottest comes last.
                let ranks: Vec<usize> =
                    (0..chosen.len()).rev().filter(|rank| chosen[*rank].layer as usize == layer).collect();
                let experts: Vec<u32> = ranks.iter().map(|rank| chosen[*rank].expert).collect();
                store.read_through(team, layer, &experts)?;
                for rank in &ranks {
                    let slot = store.slot_of_record[store.geometry.record_index(chosen[*rank])];
                    let seed = 1 + SEED_RANGE * (chosen.len() - rank) / chosen.len();
                    if let Some(slot) = slot {
                        store.policy.seeded(slot as usize, seed as u32);
                        read += 1;
                    }
                }
            }
            Ok(read)
        })
    }

    /// Does `work` and forgets what it counted: what is loaded before anybody asks for it is no hit, no miss and no use.
    pub(crate) fn uncounted<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let counted = (self.hits, self.misses, self.uses.clone());
        let telemetry = self.telemetry.take();
        let result = work(self);
        (self.hits, self.misses, self.uses) = counted;
        self.telemetry = telemetry;
        result
    }

    fn read_through(&mut self, team: &Team<'_>, layer: usize, experts: &[u32]) -> Result<(), ExpertError> {
        let mut visit = self.begin(layer, experts)?;
        while visit.next_ready(team)?.is_some() {}
        Ok(())
    }
}
