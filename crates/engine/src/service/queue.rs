//! Requests that wait, dealt out fairly between clients.
//!
//! Every client has a line of its own and the lines take turns, so that one client with a hundred requests does not keep
//! another one with a single request waiting. Within a line the order is that of arrival. Owns the waiting requests and their
//! bound; refuses to know what a request is.

use std::collections::VecDeque;

/// Lines of waiting entries; see the module header.
pub(crate) struct FairQueue<T> {
    /// Clients with entries, the one whose turn is next first.
    lines: VecDeque<(String, VecDeque<T>)>,
    waiting: usize,
    limit: usize,
}

impl<T> FairQueue<T> {
    /// A queue of at most `limit` entries.
    pub fn new(limit: usize) -> Self {
        Self { lines: VecDeque::new(), waiting: 0, limit }
    }

    /// Entries in all lines.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Most entries.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Entries that will be taken before the next one of `client` if no other comes.
    pub fn ahead_of_new(&self, client: &str) -> usize {
        let place = self.lines.iter().position(|(name, _)| name == client);
        let depth = place.map_or(0, |place| self.lines[place].1.len());
        self.ahead_of(place.unwrap_or(self.lines.len()), depth)
    }

    /// Puts an entry at the end of its client's line. The bound is the caller's to keep.
    pub fn push(&mut self, client: &str, entry: T) {
        match self.lines.iter_mut().find(|(name, _)| name == client) {
            Some((_, line)) => line.push_back(entry),
            None => self.lines.push_back((client.to_owned(), VecDeque::from([entry]))),
        }
        self.waiting += 1;
    }

    /// Puts an entry before all others: it has been running already.
    pub fn push_first(&mut self, client: &str, entry: T) {
        let line = self.lines.iter().position(|(name, _)| name == client);
        let (name, mut line) = match line.and_then(|place| self.lines.remove(place)) {
            Some(line) => line,
            None => (client.to_owned(), VecDeque::new()),
        };
        line.push_front(entry);
        self.lines.push_front((name, line));
        self.waiting += 1;
    }

    /// Entries taken before the entry at `depth` of the line at `place`.
    fn ahead_of(&self, place: usize, depth: usize) -> usize {
        let taken = self.lines.iter().enumerate().map(|(other, (_, line))| {
            let turns = if other < place { depth + 1 } else { depth };
            line.len().min(turns)
        });
        taken.sum()
    }

    /// Takes the entry whose turn is next; the next turn is another client's.
    pub fn pop(&mut self) -> Option<T> {
        let (client, mut line) = self.lines.pop_front()?;
        let entry = line.pop_front();
        if !line.is_empty() {
            self.lines.push_back((client, line));
        }
        self.waiting -= usize::from(entry.is_some());
        entry
    }

    /// Takes out every entry that `leaves` says of.
    pub fn take_out(&mut self, mut leaves: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for (_, line) in &mut self.lines {
            for _ in 0..line.len() {
                let Some(entry) = line.pop_front() else { break };
                if leaves(&entry) { out.push(entry) } else { line.push_back(entry) }
            }
        }
        self.lines.retain(|(_, line)| !line.is_empty());
        self.waiting -= out.len();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::new(10);
        let ahead: Vec<usize> = [("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20), ("b", 11)]
            .into_iter()
            .map(|(client, entry)| {
                let ahead = queue.ahead_of_new(client);
                queue.push(client, entry);
                ahead
            })
            .collect();
        assert_eq!(ahead, [0, 1, 2, 1, 2, 4]);
        assert_eq!(drain(&mut queue), [1, 10, 20, 2, 11, 3]);
    }

    #[test]
    fn what_is_ahead_is_what_is_taken_before() {
        // Every entry's figure at its arrival, if nothing comes after it.
        let arrivals = ["a", "b", "a", "c", "a", "b", "b", "d", "a", "c"];
        for last in 1..=arrivals.len() {
            let mut queue = FairQueue::new(20);
            let mut ahead = 0;
            for (entry, client) in arrivals[..last].iter().enumerate() {
                ahead = queue.ahead_of_new(client);
                queue.push(client, entry as u32);
            }
            let order = drain(&mut queue);
            assert_eq!(order.iter().position(|&entry| entry as usize == last - 1), Some(ahead));
        }
    }

    #[test]
    fn what_was_running_comes_first_and_what_leaves_is_gone() {
        let mut queue = FairQueue::new(2);
        for (client, entry) in [("a", 1), ("b", 2)] {
            queue.push(client, entry);
        }
        queue.push_first("b", 3);
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.take_out(|&entry| entry == 1), [1]);
        assert_eq!(drain(&mut queue), [3, 2]);
        assert_eq!(queue.len(), 0);
    }
}
