/** A sandbox for each session of opencode: what its SandboxContext has, and its status endpoint. */

import type { Config, Info, Instance, Provider, Status } from "./contract.js"

export interface SessionStatus {
  sessionId: string
  status: Status
  sandbox?: Info
}

export class SessionSandboxes {
  private readonly known = new Map<string, Promise<Instance>>()

  constructor(
    private readonly provider: Provider,
    /** For all of them: project, workdir, limits. */
    private readonly config: Config = {},
  ) {}

  /** The session's own, whoever asks at the same time, here or in another process: the session is the workspace's ID. */
  async getOrCreateForSession(sessionId: string, config: Config = {}): Promise<Instance> {
    const waiting = this.known.get(sessionId)
    if (waiting !== undefined) {
      const instance = await waiting.catch(() => undefined)
      if (instance !== undefined && (await instance.getStatus()) === "running") return instance
      if (this.known.get(sessionId) === waiting) this.known.delete(sessionId)
      else return this.getOrCreateForSession(sessionId, config)
    }
    const made = this.provider.create({ ...this.config, ...config, sessionId })
    this.known.set(sessionId, made)
    made.catch(() => {
      if (this.known.get(sessionId) === made) this.known.delete(sessionId)
    })
    return made
  }

  /** Also that of an earlier process; undefined: it has none. */
  async getForSession(sessionId: string): Promise<Instance | undefined> {
    const waiting = this.known.get(sessionId)
    if (waiting !== undefined) return waiting
    const [info] = await this.provider.list({ sessionId })
    return info === undefined ? undefined : this.provider.get(info.id)
  }

  async terminateForSession(sessionId: string): Promise<void> {
    this.known.delete(sessionId)
    await this.provider.terminateAll({ sessionId })
  }

  /** How many that were: those of this object. */
  async terminateAll(): Promise<number> {
    const sessions = [...this.known.keys()]
    await Promise.all(sessions.map((sessionId) => this.terminateForSession(sessionId)))
    return sessions.length
  }

  /** For GET /session/:sessionID/sandbox. */
  async status(sessionId: string): Promise<SessionStatus> {
    const instance = await this.getForSession(sessionId)
    if (instance === undefined) return { sessionId, status: "terminated" }
    const status = await instance.getStatus()
    return { sessionId, status, sandbox: { ...instance.info, status } }
  }
}
