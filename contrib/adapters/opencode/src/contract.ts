/** The shapes of opencode's sandbox module (its namespace Sandbox), as the proposal for it has them. */

export type Status = "creating" | "running" | "stopped" | "terminated" | "error"

export interface Config {
  id?: string | undefined
  name?: string | undefined
  provider?: string | undefined
  image?: string | undefined
  workdir?: string | undefined
  env?: Record<string, string> | undefined
  /** Processors. */
  cpu?: number | undefined
  /** MiB. */
  memory?: number | undefined
  /** Seconds that the sandbox lives. */
  timeout?: number | undefined
  gitRepo?: string | undefined
  gitBranch?: string | undefined
  projectId?: string | undefined
  sessionId?: string | undefined
}

/** The last three are not opencode's own: how much of the output is here. */
export interface ExecResult {
  exitCode: number
  stdout: string
  stderr: string
  durationMs?: number
  stdoutTruncated: boolean
  stderrTruncated: boolean
}

export interface Info {
  id: string
  name: string
  status: Status
  provider: string
  workdir: string
  createdAt: string
  lastActivityAt?: string
  projectId?: string
  sessionId?: string
  snapshotId?: string
  metadata?: Record<string, unknown>
}

export interface Snapshot {
  id: string
  sandboxId: string
  name?: string
  createdAt: string
  sizeBytes?: number
  metadata?: Record<string, unknown>
}

export interface FileInfo {
  path: string
  type: "file" | "directory" | "symlink"
  size?: number
  mode?: string
  modifiedAt?: string
}

/** timeout: milliseconds. */
export interface ExecOptions {
  cwd?: string | undefined
  env?: Record<string, string> | undefined
  timeout?: number | undefined
  stdin?: string | undefined
}

export interface Instance {
  readonly info: Info
  exec(command: string, args?: string[], options?: ExecOptions): Promise<ExecResult>
  readFile(path: string): Promise<string>
  readFileBuffer(path: string): Promise<Uint8Array>
  writeFile(path: string, content: string | Uint8Array): Promise<void>
  deleteFile(path: string, options?: { recursive?: boolean }): Promise<void>
  listFiles(path: string): Promise<FileInfo[]>
  exists(path: string): Promise<boolean>
  snapshot(name?: string): Promise<Snapshot>
  stop(): Promise<void>
  terminate(): Promise<void>
  getStatus(): Promise<Status>
  waitForStatus(status: Status, timeoutMs?: number): Promise<void>
}

export interface Provider {
  readonly type: string
  create(config: Config): Promise<Instance>
  get(id: string): Promise<Instance | undefined>
  list(filter?: { projectId?: string; sessionId?: string; status?: Status }): Promise<Info[]>
  terminate(id: string): Promise<void>
  terminateAll(filter?: { projectId?: string; sessionId?: string }): Promise<number>
  restore(snapshotId: string, config?: Partial<Config>): Promise<Instance>
  listSnapshots(filter?: { sandboxId?: string; projectId?: string }): Promise<Snapshot[]>
  deleteSnapshot(snapshotId: string): Promise<void>
  healthCheck(): Promise<boolean>
}

// --- errors ---

export interface ErrorData {
  message: string
  [key: string]: unknown
}

/** As opencode's NamedError: a name, and data. */
export class SandboxFailure extends Error {
  constructor(
    name: string,
    readonly data: ErrorData,
    options?: ErrorOptions,
  ) {
    super(data.message, options)
    this.name = name
  }

  toObject(): { name: string; data: ErrorData } {
    return { name: this.name, data: this.data }
  }
}

/** What makes a failure of one name. */
export type ErrorClass = new (data: never, options?: ErrorOptions) => Error

function named(name: string) {
  return class extends SandboxFailure {
    static isInstance(value: unknown): value is SandboxFailure {
      return typeof value === "object" && value !== null && (value as { name?: unknown }).name === name
    }

    constructor(data: ErrorData, options?: ErrorOptions) {
      super(name, data, options)
    }
  }
}

export class CreateError extends named("SandboxCreateError") {}
export class NotFoundError extends named("SandboxNotFoundError") {}
export class ExecError extends named("SandboxExecError") {}
export class FileError extends named("SandboxFileError") {}
export class SnapshotError extends named("SandboxSnapshotError") {}
export class ProviderError extends named("SandboxProviderError") {}
export class TimeoutError extends named("SandboxTimeoutError") {}

/** The classes that are thrown: these, or opencode's own, whose instanceof is then true. */
export interface Errors {
  CreateError: ErrorClass
  NotFoundError: ErrorClass
  ExecError: ErrorClass
  FileError: ErrorClass
  SnapshotError: ErrorClass
  ProviderError: ErrorClass
  TimeoutError: ErrorClass
}

export const ownErrors: Errors = {
  CreateError,
  NotFoundError,
  ExecError,
  FileError,
  SnapshotError,
  ProviderError,
  TimeoutError,
}
