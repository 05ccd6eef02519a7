//! How a child is asked: one input after the other, because to start a process takes milliseconds.
//!
//! The parent writes the length of an input and the seconds of processor time for it, both as
//! numbers of 8 bytes, and the input; the child writes the length of its answer, and the answer.
//! Memory is limited once for all of them.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::sync::mpsc;
use std::thread;

use crate::child::{Ended, Limits, cause, start};

/// What is read of a child's last words, which only tell one cause from another.
const STDERR_BYTES: u64 = 4096;

/// A child that waits for an input. It ends when it is dropped.
pub struct Asked {
    child: Child,
    /// Lent to a thread while the child answers.
    pipes: Option<Pipes>,
}

struct Pipes {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// What ends an exchange without an answer.
enum Broken {
    /// The answer is longer than it may be.
    TooLong,
    /// The child has closed its pipes.
    Closed,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

impl Asked {
    /// Starts this program with `words`, for which it calls [`answer_all`].
    ///
    /// # Errors
    /// [`Ended::NotStarted`].
    pub fn start(words: &[String]) -> Result<Self, Ended> {
        let mut child = start(words).map_err(|error| Ended::NotStarted(error.to_string()))?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(Ended::NotStarted("it has no pipes".to_owned()));
        };
        Ok(Self { child, pipes: Some(Pipes { stdin, stdout, stderr }) })
    }

    /// Sends an input and returns what the child writes, with the child, which may be asked again.
    /// The memory of `limits` is what the child was told when it began.
    ///
    /// # Errors
    /// [`Ended`], once the child has ended.
    pub fn ask(
        mut self,
        input: impl AsRef<[u8]> + Send + 'static,
        limits: &Limits,
    ) -> Result<(Self, Vec<u8>), Ended> {
        let Some(mut pipes) = self.pipes.take() else {
            return Err(Ended::NotStarted("it has no pipes".to_owned()));
        };
        let Limits { cpu_s, answer_bytes, .. } = *limits;
        let (send, receive) = mpsc::channel();
        // A child that ends early closes its pipes, and then the thread ends.
        thread::spawn(move || {
            let answer = pipes.exchange(input.as_ref(), cpu_s, answer_bytes);
            let _ = send.send((answer, pipes));
        });
        match receive.recv_timeout(limits.wall) {
            Ok((Ok(answer), pipes)) => {
                self.pipes = Some(pipes);
                Ok((self, answer))
            }
            Ok((Err(Broken::TooLong), _)) => Err(Ended::TooLong(answer_bytes)),
            Ok((Err(Broken::Closed), pipes)) => {
                let Pipes { stdin, stderr, .. } = pipes;
                drop(stdin);
                let mut words = Vec::new();
                let _ = stderr.take(STDERR_BYTES).read_to_end(&mut words);
                let status = self.child.wait();
                let status = status.map_err(|error| Ended::NotStarted(error.to_string()))?;
                Err(cause(&String::from_utf8_lossy(&words), status, limits))
            }
            Err(_) => Err(Ended::TooSlow(limits.wall.as_secs())),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pipes {
    fn exchange(&mut self, input: &[u8], cpu_s: u64, limit: u64) -> Result<Vec<u8>, Broken> {
        let Self { stdin, stdout, .. } = self;
        stdin.write_all(&(input.len() as u64).to_le_bytes())?;
        stdin.write_all(&cpu_s.to_le_bytes())?;
        stdin.write_all(input)?;
        let len = read_number(stdout)?;
        if len > limit { Err(Broken::TooLong) } else { Ok(read_bytes(stdout, len)?) }
    }
}

/// For the child: answers inputs until the parent has no more. Memory is limited by now
/// ([`limit_memory`](crate::child::limit_memory), [`limit`](crate::child::limit)).
///
/// # Errors
/// What the system says, such as that the parent has gone, and what `answer` says.
pub fn answer_all(mut answer: impl FnMut(&[u8]) -> io::Result<Vec<u8>>) -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    loop {
        let mut first = [0];
        if stdin.read(&mut first)? == 0 {
            return Ok(());
        }
        let mut len = [first[0]; 8];
        stdin.read_exact(&mut len[1..])?;
        limit_cpu(read_number(&mut stdin)?);
        let input = read_bytes(&mut stdin, u64::from_le_bytes(len))?;
        let answer = answer(&input)?;
        stdout.write_all(&(answer.len() as u64).to_le_bytes())?;
        stdout.write_all(&answer)?;
        stdout.flush()?;
    }
}

fn read_number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_bytes(from: &mut impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let n = from.take(len).read_to_end(&mut bytes)?;
    if n as u64 == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Gives this process so much more processor time than it has used.
#[cfg(unix)]
fn limit_cpu(more_s: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::time::{ClockId, clock_gettime};
    let used = clock_gettime(ClockId::ProcessCPUTime);
    // Seconds that have begun count as whole ones.
    let used_s = u64::try_from(used.tv_sec).unwrap_or(0) + u64::from(used.tv_nsec > 0);
    let maximum = getrlimit(Resource::Cpu).maximum;
    let wanted = used_s + more_s;
    let current = Some(maximum.map_or(wanted, |most| most.min(wanted)));
    let _ = setrlimit(Resource::Cpu, Rlimit { current, maximum });
}

/// Does nothing: this system has no such limit.
#[cfg(not(unix))]
fn limit_cpu(_: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_end_where_they_say() {
        let mut from: &[u8] = &[3, 0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 10];
        assert_eq!(read_number(&mut from).unwrap(), 3);
        assert_eq!(read_bytes(&mut from, 3).unwrap(), [7, 8, 9]);
        assert!(read_bytes(&mut from, 2).is_err(), "one byte is left");
        assert!(read_number(&mut from).is_err());
    }
}
