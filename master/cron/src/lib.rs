//! When the schedule of a CronJob is due: parses the schedule, and finds the next and the last time
//! in its time zone.
//!
//! [`Schedule::parse`] reads a line in the syntax of upstream's library (`robfig/cron`), and says
//! in that library's words what is wrong with it ([`Fault`]). Pure, except that time zones come
//! from the machine's database: there are no tasks, and the caller gives the time. Enter at
//! [`Schedule`].

mod schedule;

pub use schedule::{Fault, MOST_MISSED, Schedule};
