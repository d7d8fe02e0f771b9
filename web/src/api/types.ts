/**
 * Shapes of replies that the page reads: those of the OpenAPI document (`make types`), with what
 * it leaves open (values it calls plain objects) said more closely.
 */

import type { components } from '../../generated/schema'

type Schemas = components['schemas']

/** Hone always sends a reply's optional fields, as null where there is nothing. */
type Present<T> = T extends (infer Item)[]
  ? Present<Item>[]
  : T extends object
    ? { [Field in keyof T]-?: Present<Exclude<T[Field], undefined>> }
    : T

/** A reply, by its name in the document. */
type Reply<Name extends keyof Schemas> = Present<Schemas[Name]>

/** A reply some fields of which are known more closely. */
type Closer<Name extends keyof Schemas, Fields> = Omit<Reply<Name>, keyof Fields> & Fields

export interface List<T> {
  object: 'list'
  data: T[]
  next?: string | null
}

export type Consent = 'off' | 'serve' | 'full'

export interface Me {
  name: string
  role: 'user' | 'developer' | 'admin' | 'auditor'
  via: 'loopback' | 'key' | 'session'
  csrf: string | null
  users_exist: boolean
  /** The team they are in. */
  team: string | null
}

export interface ConsentView {
  learning: Consent
  /** Whether a share of one's chats may be answered by the base model, to measure what learning does. */
  holdback: boolean
  /** Whether calls that say store: false are learned from all the same. */
  despite_store_false: boolean
  explanation: string
  /** What this server learns from the text of a better answer. */
  corrections: 'imitated' | 'hint' | 'score'
  /** Whether such a text still teaches where a version has learned from the answer already. */
  corrections_replayed: boolean
  withdrawn_turns: number
}

export interface ToolCall {
  id?: string
  type?: string
  function?: { name?: string; arguments?: string }
}

export interface Message {
  role: string
  content: string | null
  tool_calls?: ToolCall[]
  tool_call_id?: string
}

/** A message as the server keeps it: its calls are not wrapped. */
export interface KeptMessage extends Omit<Message, 'tool_calls'> {
  tool_calls?: { id: string; name: string; arguments: string }[]
}

export type Fate = Reply<'FateReply'>
export type Feedback = Reply<'FeedbackView'>
export type FeedbackReply = Reply<'FeedbackReply'>
export type HoneNote = Omit<Reply<'HoneNote'>, 'memories' | 'skills' | 'question' | 'others'> & {
  /** Absent where the prompt shows none. */
  memories?: string[]
  skills?: ShownSkill[]
}
export type SessionRow = Reply<'SessionReply'>
export type SessionTurn = Closer<'SessionTurnReply', { messages: KeptMessage[]; tool_calls: ToolCall[] }>
export type SessionView = Reply<'SessionHead'> & { turns: SessionTurn[]; next: string | null }
export type Verdict = Closer<'VerdictReply', { votes: Vote[]; hint_choice: HintChoice | null }>
export type Turn = Closer<
  'TurnReply',
  {
    /** What was said to the person, and what was thought before; `completion` is both as it was sampled. */
    content: string | null
    reasoning: string | null
    sampling: Record<string, unknown>
    next_state: { kind: string; text: string }[]
    verdict: Verdict | null
  }
>

/** How one of several hints was chosen. */
export interface HintChoice {
  candidates: { hint: string; agreement: number | null }[]
  chosen: number
  by: 'agreement' | 'rule'
  reason: string
}

export interface Vote {
  signal: string
  outcome: string
  reason: string | null
  model: string | null
  latency_ms: number
  words?: string | null
}

export interface Version {
  version: number
  parent: number
  status: string
  digest: string | null
  samples: number
  mean_score: number | null
  scored_turns: number
  report: Record<string, unknown> | null
  gate: Record<string, unknown> | null
  published_ms: number
  pinned?: boolean
  provisional?: boolean
  tainted?: boolean
  tripped?: boolean
  pruned?: boolean
  damaged?: boolean
  retired?: boolean
  on_trial?: boolean
  note?: string | null
}

export type VersionSeries = Closer<'VersionSeriesReply', { data: Record<string, (number | null)[]> }>

export interface Standing {
  pinned: boolean
  tripped: { note: string; version: number; at_ms: number } | null
}

export type Trial = Reply<'TrialReply'>

export interface VersionList {
  object: 'list'
  data: Version[]
  /** Where the older ones begin. */
  next: number | null
  current: number
  standing?: Standing
  trial: Trial | null
}

export interface VersionDetail extends Version {
  lineage: number[]
  children: number[]
  /** The turns it learned from; `samples` counts them. */
  turns: Sample[]
}

export interface Learned {
  sentence: string
  turns: number
  judged: number
  trained: number
  versions: LearnedVersion[]
  waiting: Record<string, number>
  /** What the newest version follows, and then what a newer wish replaced. */
  wishes: { turn_id: string; words: string; followed: boolean }[]
}

export interface LearnedVersion {
  version: number
  published_ms: number
  samples: number
  score_before: number | null
  score_after: number | null
  tainted: boolean
  words: string
}

export interface Improvement {
  difference: number | null
  interval: [number, number] | null
  n_policy: number
  n_base: number
  smallest_detectable: number | null
  corrections_per_100: number | null
  corrections_per_100_base: number | null
  repeat_mistake_rate: number | null
  holdback_share: number
  per_version: { version: number; turns: number; sessions: number; mean_score: number; corrections_per_100: number }[]
  sentence: string
}

export interface ForgetPlan {
  /** None for a dry run. */
  id: string | null
  dry_run: boolean
  turns: number
  transitions: number
  samples: number
  versions_tainted: number[]
  rolls_back_to: number | null
  cannot_undo: string[]
  state: 'done' | 'running'
  turns_left: number
}

export interface Answered {
  text: string
  tokens: number
  stop: string
}

export interface Comparison {
  data: { messages: Message[]; a: Answered; b: Answered }[]
}

export interface Sample {
  turn_id: string
  score: number | null
  advantage?: number | null
}

export interface Limits {
  requests_per_minute?: number | null
  tokens_per_minute?: number | null
  tokens_per_day?: number | null
  streams_max?: number | null
}

export interface Key {
  id: string
  prefix: string
  name: string
  owner?: string
  role: string
  created_ms: number
  expires_ms: number | null
  used_ms: number | null
  revoked_ms?: number | null
  limits?: Limits
  /** Whether its calls are collected although they say store: false. */
  despite_store_false: boolean
  /** What its calls do with memories where they do not say. */
  memory: 'off' | 'read' | 'full' | null
}

export interface NewKey {
  id: string
  prefix: string
  /** The secret; only in this reply. */
  key: string
}

// === Memories ===

export type MemoryMode = 'off' | 'read' | 'full'
export type MemoryKind = 'fact' | 'preference'
export type Memory = Closer<'MemoryReply', { kind: MemoryKind; origin: 'said' | 'judged' | 'imported' }>

/** What requests do with memories. */
export interface MemoryModes {
  /** Where they do not say. */
  mode: MemoryMode
  /** At most, by one's consent. */
  mode_max: MemoryMode
}

export type Memories = List<Memory> & MemoryModes
export type MemoriesImported = Reply<'MemoriesImported'>

// === Skills ===

export type Skill = Closer<'SkillReply', { state: 'active' | 'paused' | 'quarantined'; origin: 'imported' | 'written' | 'corrections' }>
export type SkillDetail = Reply<'SkillDetailReply'>
export type SkillVersion = Reply<'SkillVersionReply'>
export type Skills = List<Skill> & MemoryModes
/** A skill that an answer was shown. */
export type ShownSkill = Reply<'ShownSkillReply'>

// === Tasks and rollouts ===

export type TaskState = 'new' | 'ready' | 'refused' | 'quarantined'
export type JobState = 'queued' | 'running' | 'done' | 'retried' | 'skipped' | 'failed' | 'cancelled'
export type TaskSet = Closer<'TaskSetReply', { states: Partial<Record<TaskState, number>> }>
export type Task = Closer<'TaskReply', { state: TaskState }>
export type TaskSetView = TaskSet & { data: Task[] }
export type RolloutWish = Schemas['RolloutRequest'] & { agent: 'bash' | 'answer' | 'command' }
export type VersionSuccess = Closer<'VersionSuccess', { interval: [low: number, high: number] }>
export type Rollout = Closer<
  'RolloutReply',
  {
    status: 'running' | 'done' | 'cancelled'
    agent: RolloutWish['agent']
    episodes: Partial<Record<JobState, number>>
    versions: VersionSuccess[]
  }
>
export type Episode = Closer<'EpisodeReply', { state: JobState; result: EpisodeResult | null }>

/** What there is depends on how it ended. */
export interface EpisodeResult {
  steps?: number
  test_output?: string
  output?: string
  error?: string
}

export type Queue = Closer<'QueueReply', { kind: 'episode' | 'credit' | 'check'; state: JobState }>
export type Queues = Closer<'QueuesReply', { data: Queue[] }>
export type Scaling = List<Reply<'ScalingReply'>>

// === The console ===

export type Alert = Reply<'Since'>
export type Why = Reply<'WhyReply'>
export type EngineStatus = Reply<'EngineStatus'>
export type Status = Closer<
  'StatusReply',
  {
    loops: Record<string, LoopStatus>
    ledger: {
      turns: number
      pending: [stage: string, count: number][]
      trained: number
      settled: [reason: string, count: number][]
      versions: number
      refused: number
    } | null
  }
>
export type SeriesReply = Closer<'SeriesReply', { data: Record<string, [number, number | null][]> }>
export type LearningNow = Reply<'LearningReply'>
export type TurnLine = Reply<'TurnLineReply'>
export type AdminTurn = Turn & {
  scope: string
  owner: string
  messages: KeptMessage[]
  tokens: Reply<'TokenReply'>[] | null
  entered: Closer<'EntryReply', { report: Record<string, unknown> }>[]
}
export type Branches = Reply<'BranchesReply'>
export type ConfigRow = Closer<'Setting', { value: unknown }>

export interface LoopStatus {
  state: 'starting' | 'running' | 'paused' | 'restarting' | 'draining' | 'stopped'
  steps: number
  last_step_ms: number
  effects_in_flight: number
  queue_depth: number
  queue_limit: number
  queue_dropped: number
  restarts: number
  last_error: string | null
  numbers: Record<string, number>
}

export interface ScopeRow {
  scope: string
  owner: string
  user: string | null
  current: number
  pinned: boolean
  turns: number
  versions: number
  last_turn_ms: number | null
  mean_score: number | null
  canary?: unknown
  tripped: string | null
}

/** Why a turn does not train. */
export type Reason = Reply<'ReasonReply'>

export interface Refusal {
  number?: number
  parent: number
  digest: string | null
  reason: string
  reasons?: string[]
  samples: number
  report: Record<string, unknown>
  refused_ms: number
}

/** Whose agent an account is: one of the two. */
export interface Keeper {
  owner: string | null
  team: string | null
}

export interface Agent {
  name: string
  keeper: Keeper
  /** Whether the caller decides about it. */
  manages: boolean
  disabled: boolean
  limits: Limits
  consent: Consent
  created_ms: number
}

export interface Team {
  name: string
  disabled: boolean
  limits: Limits
  created_ms: number
  members: { name: string; lead: boolean }[]
  agents: string[]
}

export interface User {
  /** Whose agent this is; null for an account of its own. */
  keeper: Keeper | null
  name: string
  role: string
  disabled: boolean
  has_password: boolean
  /** A new one; only in the reply that made it. */
  password?: string
  limits: Limits
  created_ms: number
  signed_in_ms: number | null
}

export type ConsentRow = Reply<'ConsentItem'>
export type ForgetRow = Reply<'ForgetItem'>
export type StorageSize = Reply<'StorageReply'>

export interface AuditRow {
  number: number
  at_ms: number
  actor: string
  act: string
  object: string
  detail: unknown
  hash: string
}
